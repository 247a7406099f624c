import json, re, random
random.seed(1)
class Node:
    def __init__(self, key): self.key, self.left, self.right = key, None, None
    def insert(self, key):
        side = 'left' if key < self.key else 'right'
        child = getattr(self, side)
        if child is None: setattr(self, side, Node(key))
        else: child.insert(key)
for n in range(4):
    root = Node(500)
    for i in range(3000): root.insert(random.randrange(1000))if i < 300 else None
    text = json.dumps([{'k%d' % i: [i, i * 1.5, str(i)]} for i in range(3000)])
    words = re.findall(r'[a-z]+[0-9]+', text); d = {}
    for w in words: d[w] = d.get(w, 0) + 1
    sorted(d.items(), key=lambda kv: (kv[1], kv[0])); sum(x * x % 7 for x in range(40000))
