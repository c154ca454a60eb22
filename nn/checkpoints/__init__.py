"""Checkpoints: all that a run needs to go on as if it had never stopped, whole or not at all.

================ ==================================================================================
``metadata``     what a checkpoint holds, and whether this run may go on from it
``versions``     which code made it
``files``        one checkpoint in an .npz file, with checksums
``folder``       the checkpoints of a run: the last ones, the best one, state.json for scripts
``lock``         one run at a time writes into a folder
``writer``       rank 0 writes them beside the training
``checkpointer`` when: every so many steps, and where ranks are asked to stop (``stopping``)
``resume_point`` what a run goes on from
================ ==================================================================================

A file has whole parameters and velocities, whatever the plan: other numbers of ranks, plans and devices go
on from it too, to rounding. Orders of samples are drawn from (seed, epoch): there is no other random state.
"""

from __future__ import annotations
