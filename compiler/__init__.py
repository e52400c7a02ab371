"""Turns an upstream verl launch into a recipe and a report: every leaf judged, nothing guessed."""
