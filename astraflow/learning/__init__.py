"""Examination of a run's learning: a pure function from its steps, rollouts and evaluations to findings.

`examine` is hot in dataflow, which reports the findings, and runs over the archive of an ended run. Like the sizer, it
has no clock and no state. Each check stands in the module of what it reads: `steps` (metrics of training steps),
`groups` (rewards of rollouts), `answers` (their texts), `policies` (several policies, evaluations).
"""
