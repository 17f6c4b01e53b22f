"""Programs: HLO modules as op tables. Structure travels once per fingerprint; the raw HLO never leaves the host."""
