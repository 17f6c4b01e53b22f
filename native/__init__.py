"""C and C++ that the installed package is built with: span rings and the XSpace decoder."""
