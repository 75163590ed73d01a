"""The background work of a server: one duty per file, and the schedule that runs them."""

from lockstep.engine.maintenance.promotion import Promotion
from lockstep.engine.maintenance.schedule import Duties

__all__ = ["Duties", "Promotion"]
