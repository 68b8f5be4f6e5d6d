"""From a trial to checkpoints: batches, optimizer steps, reports."""
