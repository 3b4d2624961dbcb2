"""`cuesqueue prove`: runs a job on made data, kills it at every named step, and compares what its sink holds.

`proof` runs the job again and again (`runs`), each in a folder of its own, and compares the results (`results`);
`reasons` explains a difference. `inside` is the process of the job: it leads its queue, store, checkpoints and files
into the folder (`folder`), makes its data (`samples`), and notes what the job does (`effects`). Of
cuesqueue itself it knows what users know: `import cuesqueue`, the options, and what a command is made of.
"""
