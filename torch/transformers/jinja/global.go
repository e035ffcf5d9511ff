package jinja

import (
	"fmt"
	"strings"
	"time"
)

// globalFuncs are the functions of a template.
var globalFuncs = map[string]Value{}

func init() {
	for name, b := range map[string]*builtin{
		"range":     define("start stop=none step=1", rangeOf),
		"dict":      define("from=none *", func(c *call) Value { return entries(c, NewDict()) }),
		"namespace": define("from=none *", newNamespace),
		"raise_exception": define("message", func(c *call) Value {
			panic(&Error{c.r.line, &Raised{c.r.str(c.args[0])}})
		}),
		"strftime_now": define("format", func(c *call) Value {
			if c.r.now.IsZero() {
				c.r.fail("the template asks for the time, and none is given")
			}
			return c.r.strftime(c.text(0))
		}),
	} {
		globalFuncs[name] = b.bind(name, nil)
	}
}

// entries adds a dictionary or pairs, then the keyword arguments, to d.
func entries(c *call, d *Dict) *Dict {
	switch from := c.args[0].(type) {
	case nil:
	case *Dict:
		c.r.listed(from.Len())
		for _, key := range from.keys {
			d.Set(key, from.values[key])
		}
	default:
		for _, item := range c.r.items(from) {
			pair := c.r.items(item)
			if len(pair) != 2 {
				c.r.fail("a dictionary is made of pairs, not of %d values", len(pair))
			}
			key, ok := pair[0].(string)
			if !ok {
				c.r.fail("a dictionary's key is no string")
			}
			d.Set(key, pair[1])
		}
	}
	for _, k := range c.kw {
		d.Set(k.name, k.value)
	}
	return d
}

func newNamespace(c *call) Value {
	ns := &namespace{Dict: *NewDict()}
	d := entries(c, NewDict())
	for _, key := range d.keys {
		c.r.setAttr(ns, key, d.values[key])
	}
	return ns
}

func rangeOf(c *call) Value {
	start, stop, step := 0, c.number(0), c.number(2)
	if c.args[1] != nil {
		start, stop = stop, c.number(1)
	}
	if step == 0 {
		c.r.fail("the step of range is zero")
	}
	const most = 100000 // the limit of jinja2's sandbox
	if n := (stop - start) / step; n > most {
		c.r.fail("range has more than %d numbers", most)
	}
	l := &List{}
	for i := start; step > 0 && i < stop || step < 0 && i > stop; i += step {
		l.Items = append(l.Items, int64(i))
	}
	c.r.listed(len(l.Items))
	return l
}

// layouts are the strftime directives that are layouts of package time.
var layouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'B': "January", 'c': "Mon Jan _2 15:04:05 2006", 'd': "02", 'D': "01/02/06",
	'e': "_2", 'F': "2006-01-02", 'H': "15", 'h': "Jan", 'I': "03", 'm': "01", 'M': "04", 'n': "\n", 'p': "PM",
	'R': "15:04", 'S': "05", 't': "\t", 'T': "15:04:05", 'x': "01/02/06", 'X': "15:04:05", 'y': "06", 'Y': "2006",
}

// strftime is datetime.strftime in the C locale, for a time without a zone.
func (r *run) strftime(format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		rest := format[i+1:]
		bare := strings.HasPrefix(rest, "-") // of glibc: without leading zeros
		rest = strings.TrimPrefix(rest, "-")
		if rest == "" {
			r.fail("the time format %.40q ends in a directive", format)
		}
		text := r.directive(rest[0], format)
		if bare && strings.Trim(text, "0") != "" {
			text = strings.TrimLeft(text, "0 ")
		} else if bare {
			text = "0"
		}
		b.WriteString(text)
		i = len(format) - len(rest)
	}
	return b.String()
}

func (r *run) directive(letter byte, format string) string {
	if layout, ok := layouts[letter]; ok {
		return r.now.Format(layout)
	}
	switch letter {
	case '%':
		return "%"
	case 'f':
		return fmt.Sprintf("%06d", r.now.Nanosecond()/int(time.Microsecond))
	case 'j':
		return fmt.Sprintf("%03d", r.now.YearDay())
	case 'u':
		return fmt.Sprint((int(r.now.Weekday())+6)%7 + 1)
	case 'w':
		return fmt.Sprint(int(r.now.Weekday()))
	case 'z', 'Z':
		return ""
	}
	r.fail("the directive %%%c of the time format %.40q is not supported", letter, format)
	return ""
}
