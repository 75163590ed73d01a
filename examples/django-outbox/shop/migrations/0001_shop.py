"""The tables of the shop, with something in stock."""

from typing import Any

import django.db.models.deletion
from django.db import migrations, models


def fill(apps: Any, _: Any) -> None:
    stock = apps.get_model("shop", "Stock")
    stock.objects.bulk_create([stock(item="lamp", pieces=2), stock(item="table", pieces=1)])


class Migration(migrations.Migration):
    initial = True
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            "Stock",
            [
                ("item", models.CharField(max_length=50, primary_key=True, serialize=False)),
                ("pieces", models.PositiveIntegerField()),
            ],
        ),
        migrations.CreateModel(
            "Order",
            [
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("customer", models.CharField(max_length=50)),
                ("item", models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, to="shop.stock")),
            ],
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
