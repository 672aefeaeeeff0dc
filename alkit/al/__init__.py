"""Associated learning: layers with local losses, and the true pipeline over them.

layers, model       ENC, AE, AL; a stack of them
codes, losses, bridges, recipes     what a layer is made of
convert, families   any list of blocks as AL layers; the published networks
train, stages           an epoch in any mode
trainer, fit            associated learning as the loop over epochs runs it, behind `alkit.fit`
label_side                          the label side without an input
backprop            the same blocks under plain backprop
"""
