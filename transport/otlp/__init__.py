"""Series pushed by OTLP over HTTP, for those who do not scrape (extra `otlp`; docs/design/0023)."""

from fleetscope.transport.otlp.push import Pusher, pusher

__all__ = ["Pusher", "pusher"]
