"""The series of AWS' own exporters, for every node: dashboards built on them go on working."""
