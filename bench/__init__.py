"""The measuring suite and the command line: pinned inputs, launches, records, comparison, page."""
