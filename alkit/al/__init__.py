"""Associated learning: layers with local losses, and the true pipeline over them.

layers, model               ENC, AE, AL; a stack of them
codes, bridges, recipes     the parts of a layer
convert, rules              any list of blocks as AL layers, or as layers of a local rule
stages, train               an epoch in any mode, over threads or ranks
fit                         associated learning behind `alkit.fit`
backprop                    the same blocks under plain backprop
"""
