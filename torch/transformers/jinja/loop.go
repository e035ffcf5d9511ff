package jinja

// attribute returns an attribute of the variable loop.
func (l *loopState) attribute(name string) (Value, bool) {
	switch name {
	case "index":
		return int64(l.index + 1), true
	case "index0":
		return int64(l.index), true
	case "revindex":
		return int64(len(l.items) - l.index), true
	case "revindex0":
		return int64(len(l.items) - l.index - 1), true
	case "first":
		return l.index == 0, true
	case "last":
		return l.index == len(l.items)-1, true
	case "length":
		return int64(len(l.items)), true
	case "depth":
		return int64(l.depth + 1), true
	case "depth0":
		return int64(l.depth), true
	case "previtem":
		if l.index > 0 {
			return l.items[l.index-1], true
		}
		return Undefined{"there is no previous item"}, true
	case "nextitem":
		if l.index < len(l.items)-1 {
			return l.items[l.index+1], true
		}
		return Undefined{"there is no next item"}, true
	case "cycle":
		return define("*", func(c *call) Value {
			if len(c.args) == 0 {
				c.r.fail("loop.cycle needs items")
			}
			return c.args[l.index%len(c.args)]
		}).bind(name, nil), true
	case "changed":
		return define("*", func(c *call) Value {
			now := &List{Items: c.args}
			same := l.changed && c.r.equal(l.last, now, 0)
			l.last, l.changed = now, true
			return !same
		}).bind(name, nil), true
	}
	return nil, false
}
