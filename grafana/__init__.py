"""Dashboards as code, and pictures of them. Not installed: ``python -m grafana.generate`` writes the JSON."""
