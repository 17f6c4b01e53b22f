"""Interfaces of vendors, built: what a collector asks is answered from a dict, faults too. No hardware was seen."""
