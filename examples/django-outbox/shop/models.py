"""What is in stock, and what was ordered."""

from django.db import models


class Stock(models.Model):
    item = models.CharField(max_length=50, primary_key=True)
    pieces = models.PositiveIntegerField()


class Order(models.Model):
    item = models.ForeignKey(Stock, on_delete=models.PROTECT)
    customer = models.CharField(max_length=50)
