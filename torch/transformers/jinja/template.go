// Package jinja renders the Jinja templates of Hugging Face chat models as transformers does: Jinja 3.1 with
// trim_blocks, lstrip_blocks, the loop controls break and continue, the {% generation %} tag, immutable lists and
// dictionaries, a tojson that keeps the order of keys and does not escape characters, and the functions
// raise_exception, strftime_now, namespace, dict and range. Parse refuses what chat templates do not use (blocks,
// includes, imports, autoescape, argument unpacking).
//
// A template is untrusted code. It can only compute with its inputs, and Render bounds its work, its depth and its
// output.
package jinja

import (
	"fmt"
	"strings"
	"time"
)

// Limits of one template and one rendering. Published models stay orders of magnitude below them.
const (
	maxSource = 1 << 20  // bytes of a template
	maxNested = 200      // nested tags or brackets
	maxChain  = 2000     // operators in one chain such as a ~ b ~ c
	maxDepth  = 5000     // nested expressions and statements, and macros called by macros
	maxNest   = 500      // nested lists and dictionaries when printed, compared or read
	maxWork   = 2 << 20  // steps; building or scanning 64 bytes or 2 elements is one
	maxOutput = 64 << 20 // bytes of the text
)

// Template is a parsed template. It is safe for concurrent use.
type Template struct{ body []node }

// Error is an error in a template or its rendering, with its position.
type Error struct {
	Line int // counted from 1
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %v", e.Line, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Raised is the message of a template's raise_exception.
type Raised struct{ Message string }

func (r *Raised) Error() string { return r.Message }

// Parse parses a template. Its errors are of type *Error.
func Parse(source string) (t *Template, err error) {
	defer catch(&err)
	if len(source) > maxSource {
		fail(1, "the template has %d bytes, more than %d", len(source), maxSource)
	}
	p := &parser{tokens: lex(source)}
	body, _ := p.body()
	return &Template{body}, nil
}

// Span is the bytes [Start, End) of a text.
type Span struct{ Start, End int }

// Rendering is the result of Render.
type Rendering struct {
	Text string
	// Generated are the spans of the {% generation %} blocks in Text, in the order they end.
	Generated []Span
	// Unplaced means that a generation block was rendered into a string (in a macro, a set or a filter block), so its
	// position is unknown and not in Generated.
	Unplaced bool
}

// Render runs the template on variables. now is the clock of strftime_now; if it is zero, a template that asks for the
// time is an error. Errors are of type *Error, and wrap *Raised for raise_exception.
func (t *Template) Render(variables *Dict, now time.Time) (out Rendering, err error) {
	defer catch(&err)
	r := &run{now: now, line: 1, out: &strings.Builder{}}
	s := &scope{}
	for _, name := range variables.Keys() {
		v, _ := variables.Get(name)
		s.vars = append(s.vars, variable{name, v})
	}
	if r.all(t.body, s) != flowOn {
		fail(r.line, "break or continue outside a loop")
	}
	return Rendering{r.out.String(), r.generated, r.unplaced}, nil
}

// fail and catch carry an error from deep inside a template to Parse or Render.
func fail(line int, format string, args ...any) {
	panic(&Error{line, fmt.Errorf(format, args...)})
}

func catch(err *error) {
	switch e := recover().(type) {
	case nil:
	case *Error:
		*err = e
	default:
		panic(e)
	}
}

// run is the state of one rendering.
type run struct {
	now         time.Time
	line        int // of the current statement or call
	work, depth int
	out         *strings.Builder
	captured    int // strings being built around out
	generated   []Span
	unplaced    bool
}

func (r *run) fail(format string, args ...any) { fail(r.line, format, args...) }

func (r *run) spend(n int) {
	if r.work += n; r.work > maxWork {
		r.fail("the template takes more than %d steps", maxWork)
	}
}

// built charges the budget for a string of n bytes.
func (r *run) built(n int) { r.spend(1 + n/64) }

// listed charges the budget for a list of n items.
func (r *run) listed(n int) { r.spend(1 + n/2) }

func (r *run) enter() {
	r.spend(1)
	if r.depth++; r.depth > maxDepth {
		r.fail("the template nests calls more than %d deep", maxDepth)
	}
}

func (r *run) write(s string) {
	r.built(len(s))
	if r.out.Len()+len(s) > maxOutput {
		r.fail("the text is longer than %d bytes", maxOutput)
	}
	r.out.WriteString(s)
}

// capture runs body into a string.
func (r *run) capture(body []node, s *scope) string {
	outer := r.out
	r.out = &strings.Builder{}
	r.captured++
	if r.all(body, s) != flowOn {
		r.fail("break or continue outside a loop")
	}
	r.captured--
	text := r.out.String()
	r.out = outer
	return text
}

// scope holds the variables of a template, a loop iteration, a macro call or a block. Most hold a few, for which linear
// search is faster than hashing.
type scope struct {
	vars []variable
	up   *scope
}

type variable struct {
	name  string
	value Value
}

func (s *scope) child() *scope { return &scope{up: s} }

func (s *scope) set(name string, v Value) {
	for i := range s.vars {
		if s.vars[i].name == name {
			s.vars[i].value = v
			return
		}
	}
	s.vars = append(s.vars, variable{name, v})
}

func (s *scope) get(name string) (Value, bool) {
	for ; s != nil; s = s.up {
		for i := range s.vars {
			if s.vars[i].name == name {
				return s.vars[i].value, true
			}
		}
	}
	v, ok := globalFuncs[name]
	return v, ok
}
