"""What needs the whole fleet and one leader: rounds that fold manifests into tables, replacing small files, sweeping,
symbols, runs."""
