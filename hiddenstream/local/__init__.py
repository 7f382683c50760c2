"""The whole pipeline on one machine: ``hiddenstream run``."""
