"""A run's metrics as an event file of TensorBoard's, one scalar for each step."""

import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from miniverl.bench.tracking import Tracked


def write(run: Tracked, folder: Path) -> None:
    """Times are those of the export: a run keeps none that would mean anything elsewhere."""
    writer, now = EventFileWriter(str(folder)), time.time()
    for point in run.points:
        values = [
            Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()
        ]
        writer.add_event(Event(wall_time=now, step=point.step, summary=Summary(value=values)))
    writer.close()
