"""Takes orders."""

import json

from django.db import transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from shop.messages import push
from shop.models import Order, Stock


class SoldOut(Exception):
    """There is nothing left of it."""


@csrf_exempt
@require_POST
def order(request: HttpRequest) -> JsonResponse:
    asked = json.loads(request.body)
    try:
        with transaction.atomic():
            made = Order.objects.create(item_id=asked["item"], customer=asked["customer"])
            push("orders", {"order": made.pk, "item": made.item_id}, partition=made.customer)
            # Whatever fails from here on takes the order and its message with it.
            if not Stock.objects.filter(item=made.item_id, pieces__gt=0).update(pieces=F("pieces") - 1):
                raise SoldOut
    except SoldOut:
        return JsonResponse({"error": f"there is no {asked['item']} left"}, status=409)
    return JsonResponse({"order": made.pk}, status=201)
