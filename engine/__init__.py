"""Runs a recipe on one device: rollout, reward, advantage, update, checkpoint, resume."""
