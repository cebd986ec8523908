"""All mutants."""

from __future__ import annotations

from mutants.planted_broker import BROKER
from mutants.planted_defects import DEFECTS
from mutants.planted_rules import RULES
from mutants.planted_storage import STORAGE

MUTANTS = (*RULES, *STORAGE, *BROKER, *DEFECTS)
