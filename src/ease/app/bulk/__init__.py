"""Predictions for any number of images with bounded memory, in four steps that know nothing of each other.

- `inputs`: files, folders, globs, lists, tables, datasets and videos become a stream of `Input`s.
- `predicting`: inputs become batches, and each batch becomes predictions; damaged images become rows with an error.
- `formats`: predictions become rows of CSV, JSON lines or Parquet.
- `output`: rows go into numbered parts beside the file that is asked for. A command that was killed continues after
  the last part, and the file appears when it is complete.

For more images than one process can look at, `folder` writes a folder of parts in place of a file: `index` lists the
inputs once, and any number of processes, here or on the nodes of a cluster (`cluster`), take shares of them.
"""

from ease.app.bulk.folder import FolderWritten, predict_to_folder
from ease.app.bulk.inputs import Input, listed_inputs, place_inputs, source_inputs, table_inputs
from ease.app.bulk.output import Written, predict_to_file
from ease.app.bulk.predicting import batches, predict_batch, predict_stream

__all__ = [
    "FolderWritten",
    "Input",
    "Written",
    "batches",
    "listed_inputs",
    "place_inputs",
    "predict_batch",
    "predict_stream",
    "predict_to_file",
    "predict_to_folder",
    "source_inputs",
    "table_inputs",
]
