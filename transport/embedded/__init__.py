"""The embedded log: a folder on a local disk, shared by several processes. Bytes: docs/format/embedded-log.md."""
