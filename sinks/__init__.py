"""Where results end: the columnar lake and Prometheus."""
