"""Training: data, trainer, checkpoints, logs.

taco.train.trainer.train(run, options, env)     # what `taco train` calls; starts, goes on, or finds a finished log
taco.train.data.TokenDataset                    # tokens made by `taco data prepare`, the same order on every machine
taco.train.runs.find_run(name, known)           # a recipe by name, or a JSON file
"""
