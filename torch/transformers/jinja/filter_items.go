package jinja

import (
	"slices"
	"strings"
)

// Filters that select items of a list by test or attribute.

func mapItems(c *call) Value {
	out := &List{}
	attribute, byAttribute := c.keyword("attribute")
	fallback, hasFallback := c.keyword("default")
	if !byAttribute && len(c.args) == 0 {
		c.r.fail("map needs a filter or an attribute")
	}
	for _, item := range c.r.items(c.self) {
		var v Value
		if byAttribute {
			v = path(c.r, item, attribute)
			if _, missing := v.(Undefined); missing && hasFallback {
				v = fallback
			}
		} else {
			v = c.r.filter(c.r.str(c.args[0]), item, c.args[1:], c.kw)
		}
		out.Items = append(out.Items, v)
	}
	return out
}

// choose keeps the items that pass a test or, if keep is false, those that fail it.
func choose(c *call, byAttribute, keep bool) Value {
	out := &List{}
	for _, item := range c.r.items(c.self) {
		v := item
		if byAttribute {
			v = path(c.r, item, c.args[0])
		}
		rest := c.args
		if byAttribute {
			rest = rest[1:]
		}
		holds := truth(v)
		if len(rest) > 0 {
			holds = c.r.test(c.r.str(rest[0]), v, rest[1:])
		}
		if holds == keep {
			out.Items = append(out.Items, item)
		}
	}
	return out
}

// key is the value that sort, unique, groupby, min and max compare.
func key(r *run, v Value, attribute Value, caseSensitive bool) Value {
	if attribute != nil {
		v = path(r, v, attribute)
	}
	if s, ok := v.(string); ok && !caseSensitive {
		return strings.ToLower(s)
	}
	return v
}

// keyed is an item with its key.
type keyed struct{ key, item Value }

func keyAll(c *call, items []Value, attribute Value, caseSensitive bool) []keyed {
	c.r.listed(len(items))
	out := make([]keyed, len(items))
	for i, item := range items {
		out[i] = keyed{key(c.r, item, attribute, caseSensitive), item}
	}
	return out
}

func sortKeyed(r *run, all []keyed, reverse bool) []Value {
	slices.SortStableFunc(all, func(a, b keyed) int {
		n, _ := r.order(a.key, b.key, 0)
		if reverse {
			return -n
		}
		return n
	})
	out := make([]Value, len(all))
	for i, k := range all {
		out[i] = k.item
	}
	return out
}

func sortItems(c *call) Value {
	return &List{Items: sortKeyed(c.r, keyAll(c, c.r.items(c.self), c.args[2], c.flag(1)), c.flag(0))}
}

func dictSort(c *call) Value {
	if _, ok := c.self.(*Dict); !ok {
		c.r.defined(c.self)
		c.r.fail("dictsort needs a mapping, not %s", typeName(c.self))
	}
	by := int64(0)
	switch c.args[1] {
	case "key":
	case "value":
		by = 1
	default:
		c.r.fail("dictsort sorts by key or value, not by %s", c.r.repr(c.args[1]))
	}
	return &List{Items: sortKeyed(c.r, keyAll(c, dictItems(c).(*List).Items, by, c.flag(0)), c.flag(2))}
}

func unique(c *call) Value {
	out := &List{}
	var seen []Value
	for _, k := range keyAll(c, c.r.items(c.self), c.args[1], c.flag(0)) {
		if !slices.ContainsFunc(seen, func(v Value) bool { return c.r.equal(v, k.key, 0) }) {
			seen = append(seen, k.key)
			out.Items = append(out.Items, k.item)
		}
	}
	return out
}

func extreme(c *call, sign int) Value {
	all := keyAll(c, c.r.items(c.self), c.args[1], c.flag(0))
	if len(all) == 0 {
		return Undefined{"the sequence is empty"}
	}
	best := all[0]
	for _, k := range all[1:] {
		if n, _ := c.r.order(k.key, best.key, 0); n == sign {
			best = k
		}
	}
	return best.item
}

func groupBy(c *call) Value {
	all := keyAll(c, c.r.items(c.self), c.args[0], true)
	for i, k := range all {
		if _, missing := k.key.(Undefined); missing && c.args[1] != nil {
			all[i].key = c.args[1]
		}
	}
	compared := func(k keyed) Value { return key(c.r, k.key, nil, c.flag(2)) }
	slices.SortStableFunc(all, func(a, b keyed) int {
		n, _ := c.r.order(compared(a), compared(b), 0)
		return n
	})
	out := &List{}
	for i, k := range all {
		if i > 0 && c.r.equal(compared(all[i-1]), compared(k), 0) {
			group := out.Items[len(out.Items)-1].(*List).Items[1].(*List)
			group.Items = append(group.Items, k.item)
			continue
		}
		out.Items = append(out.Items, &List{Items: []Value{k.key, &List{Items: []Value{k.item}}}, Tuple: true})
	}
	return out
}
