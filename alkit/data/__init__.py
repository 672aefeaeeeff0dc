"""Where samples come from, and what else all rooms stand on.

catalog, archives               official files: which there are, how they come, what is in them
datasets                        `load(name)`: a data set by its name
images, corpora, pydocs, text   readers, one a form
parts, given, pairs, labels     `Part` and `DataSet`; what users give; labels of classes
augment                         what is done to samples
arguments, files, paths, seeds, tree    calls, files, folders, keys, trees
"""
