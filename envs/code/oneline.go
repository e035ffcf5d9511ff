package code

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/rltrain/rltrain/envs"
)

// family is a kind of one-line problem. The placeholders A and B are numbers, T and U texts; they vary by problem.
type family struct {
	name, text, solution string
	slip                 string // a plausible wrong solution
	argument             string // argument type of the function: int, text or list
}

// families are all families.
var families = []family{
	{"add", "add A", "x+A", "x-A", "int"},
	{"subtract", "take A away", "x-A", "A-x", "int"},
	{"times", "times A", "x*A", "x+A", "int"},
	{"quotient", "how often A fits", "x//A", "x/A", "int"},
	{"rest", "rest by A", "x%A", "x//A", "int"},
	{"minus it", "A minus it", "A-x", "x-A", "int"},
	{"square", "square and add A", "x*x+A", "x*2+A", "int"},
	{"times plus", "times A plus B", "x*A+B", "(x+A)*B", "int"},
	{"plus times", "plus A, then times B", "(x+A)*B", "x+A*B", "int"},
	{"larger", "larger of it and A", "max(x,A)", "min(x,A)", "int"},
	{"smaller", "smaller of it and A", "min(x,A)", "max(x,A)", "int"},
	{"distance", "distance to A", "abs(x-A)", "x-A", "int"},
	{"above", "is it above A", "x>A", "x>=A", "int"},
	{"below", "is it below A", "x<A", "x<=A", "int"},
	{"equal", "is it A", "x==A", "x!=A", "int"},
	{"multiple", "is it a multiple of A", "x%A==0", "x//A==0", "int"},
	{"double", "double and add A", "2*x+A", "x+A", "int"},
	{"negate", "negate and add A", "-x+A", "-x-A", "int"},
	{"sign", "A if negative", "A if x<0 else x", "x if x<0 else A", "int"},
	{"last digit", "last digit plus A", "x%10+A", "x//10+A", "int"},
	{"front", "put T in front", "'T'+x", "x+'T'", "text"},
	{"behind", "put T behind", "x+'T'", "'T'+x", "text"},
	{"around", "T in front, U behind", "'T'+x+'U'", "'U'+x+'T'", "text"},
	{"count", "count T", "x.count('T')", "x.find('T')", "text"},
	{"replace", "T becomes U", "x.replace('T','U')", "x.replace('U','T')", "text"},
	{"begins", "begins with T", "x.startswith('T')", "x.endswith('T')", "text"},
	{"ends", "ends with T", "x.endswith('T')", "x.startswith('T')", "text"},
	{"upper", "capitals, then T", "x.upper()+'T'", "x.lower()+'T'", "text"},
	{"reverse", "backwards, then T", "x[::-1]+'T'", "'T'+x[::-1]", "text"},
	{"longer", "longer than A", "len(x)>A", "len(x)<A", "text"},
	{"length", "length plus A", "len(x)+A", "len(x)-A", "text"},
	{"add each", "add A to each", "[v+A for v in x]", "x+[A]", "list"},
	{"times each", "each times A", "[v*A for v in x]", "[v+A for v in x]", "list"},
	{"filter", "those above A", "[v for v in x if v>A]", "[v for v in x if v<A]", "list"},
	{"sum", "sum plus A", "sum(x)+A", "sum(x)", "list"},
	{"most", "largest plus A", "max(x)+A", "min(x)+A", "list"},
	{"append", "put A behind all", "x+[A]", "[A]+x", "list"},
	{"has", "is A in it", "A in x", "x==A", "list"},
}

// oneLines generates the built-in problems. A hash of its text assigns a problem to a split, whatever the seed.
type oneLines struct {
	seed uint64
	held int // number of families, at the end, used only for evaluation
	// slips is the fraction of wrong demonstrations, so that SFT by itself does not show which solution is correct.
	slips float64

	lock  sync.Mutex
	parts map[envs.Part]*sequence
}

// sequence is the generated problems of a split, in order.
type sequence struct {
	random *rand.Rand
	seen   map[string]bool
	all    []Problem
}

// maxOneLines is the maximum number of evaluation problems; more distinct ones exist.
const maxOneLines = 2000

// at returns problem i of a split.
func (o *oneLines) at(part envs.Part, i int) Problem {
	o.lock.Lock()
	defer o.lock.Unlock()
	s := o.parts[part]
	if s == nil {
		var key [32]byte
		binary.LittleEndian.PutUint64(key[:], o.seed)
		copy(key[8:], part)
		s = &sequence{random: rand.New(rand.NewChaCha8(key)), seen: map[string]bool{}}
		o.parts[part] = s
	}
	for i >= len(s.all) {
		d := o.sample(part, s.random)
		text := d.fill.Replace(d.text)
		// Small families have few problems; evaluation problems must be distinct.
		if !d.held && partOf(text) != part || part == envs.Eval && s.seen[text] {
			continue
		}
		s.seen[text] = true
		p := d.problem()
		if part == envs.Warmup && o.slips > 0 && s.random.Float64() < o.slips {
			p.Demonstration = d.fill.Replace(d.slip)
		}
		s.all = append(s.all, p)
	}
	return s.all[i]
}

// partOf returns the split of a problem: 3 of 10 are for evaluation.
func partOf(text string) envs.Part {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	switch n := h.Sum64() % 10; {
	case n < 3:
		return envs.Eval
	case n < 6:
		return envs.Warmup
	}
	return envs.Train
}

const heldOut = "held-out "

// sampled is a family with values for a problem's placeholders.
type sampled struct {
	family
	fill *strings.Replacer
	held bool
}

// sample chooses a problem.
func (o *oneLines) sample(part envs.Part, random *rand.Rand) sampled {
	known := len(families) - o.held
	n := known
	if part == envs.Eval {
		n = len(families)
	}
	i := random.IntN(n)
	number := func() string { return fmt.Sprint(2 + random.IntN(98)) }
	word := func() string {
		text := make([]byte, 1+random.IntN(2))
		for i := range text {
			text[i] = byte('a' + random.IntN(8))
		}
		return string(text)
	}
	return sampled{families[i], strings.NewReplacer("A", number(), "B", number(), "T", word(), "U", word()), i >= known}
}

// problem builds the problem.
func (d sampled) problem() Problem {
	f, fill := d.family, d.fill
	p := Problem{Text: fill.Replace(f.text), Prefix: "def f(x):\n    return ", Entry: "f", Solution: fill.Replace(f.solution), Kind: f.name}
	p.Name = p.Text
	if d.held {
		p.Name, p.Kind = heldOut+p.Text, heldOut+f.name
	}
	p.Place = "problem " + p.Name
	var arguments []string
	h := fnv.New64a()
	_, _ = h.Write([]byte(p.Text))
	values := rand.New(rand.NewPCG(h.Sum64(), 1))
	// Arguments near the problem's number expose programs that differ only there.
	near := 0
	_, _ = fmt.Sscanf(strings.TrimLeft(p.Text, "abcdefghijklmnopqrstuvwxyz, "), "%d", &near)
	pieces := append(strings.Fields(p.Text), "ab", "c")
	for k := range 5 {
		switch f.argument {
		case "int":
			arguments = append(arguments, fmt.Sprint([]int{near, near + 1, near - 1, values.IntN(200), -values.IntN(200)}[k]))
		case "text":
			text := []string{pieces[values.IntN(len(pieces))], "abab", fill.Replace("TaT"), strings.Repeat("h", values.IntN(60)), fill.Replace("bUTU")}[k]
			arguments = append(arguments, "'"+text+"'")
		default:
			list := []int{near, values.IntN(100), near + 1, -values.IntN(50)}
			arguments = append(arguments, strings.ReplaceAll(fmt.Sprint(list[:1+k%4]), " ", ", "))
		}
	}
	for _, a := range slices.Compact(arguments) {
		p.Tests = append(p.Tests, Test{Assert: fmt.Sprintf("w = (lambda x: %s)(%s)\nr = f(%s)\nassert type(r) is type(w) and r == w", p.Solution, a, a)})
	}
	return p
}

// Len returns 0: the problems are practically unlimited.
func (o *oneLines) Len(envs.Part) int { return 0 }

// At returns a problem of a split.
func (o *oneLines) At(part envs.Part, index int) (Problem, error) {
	if index < 0 || index >= maxOneLines && part == envs.Eval {
		return Problem{}, fmt.Errorf("no episode %d in split %q", index, part)
	}
	return o.at(part, index), nil
}
