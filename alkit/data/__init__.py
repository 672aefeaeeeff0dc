"""Where samples come from, and what else all rooms stand on.

catalog, download, archives     official files: which there are, how they come, safely unpacked
datasets                        `load(name)`: a data set by its name
images, digit_images, imagenet32, text, corpora, prose, pydocs, tables    readers, one a form
parts, given                    `Part` and `DataSet`: samples, labels, batches; what users give
augment, wordpiece, labels          what is done to samples and labels
arguments, extras, files, paths, seeds, tree    calls, extras, files, folders, keys, trees
"""
