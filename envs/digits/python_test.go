package digits

import (
	"math/bits"
	"testing"

	"github.com/rltrain/rltrain/envs"

	"github.com/google/go-cmp/cmp"
)

// The default problems have the distribution of Python's random.randint: with Python's generator (MT19937, Matsumoto and
// Nishimura 1998), they are the problems of its seed 42.
func TestDrawsAsPythonDoes(t *testing.T) {
	draws := newPython(42)
	sum := &Task{name: Sum, options: Defaults(Sum)}
	for i, want := range []struct {
		numbers []int
		answer  int64
	}{
		{[]int{124, 35, 769, 291}, 49}, {[]int{238, 152}, 21}, {[]int{114, 702, 768, 923}, 50},
	} {
		e := &Episode{task: Sum, numbers: sum.sample(envs.Eval, draws.below)}
		if diff := cmp.Diff(want.numbers, e.numbers); diff != "" || e.Answer() != want.answer {
			t.Errorf("list %d with answer %d (-want +got):\n%s", i, e.Answer(), diff)
		}
	}
	draws = newPython(42)
	reverse := &Task{name: Reverse, options: Defaults(Reverse)}
	for i, want := range []struct {
		number int
		answer int64
	}{{1967825, 5287691}, {519610, 16915}} {
		e := &Episode{task: Reverse, numbers: reverse.sample(envs.Eval, draws.below)}
		if e.numbers[0] != want.number || e.Answer() != want.answer {
			t.Errorf("number %d is %d, reversed %d; want %+v", i, e.numbers[0], e.Answer(), want)
		}
	}
}

type python struct {
	state [624]uint32
	next  int
}

func newPython(seed uint32) *python {
	p := &python{next: 624}
	p.state[0] = 19650218
	for i := uint32(1); i < 624; i++ {
		p.state[i] = 1812433253*(p.state[i-1]^p.state[i-1]>>30) + i
	}
	i := 1
	for range 624 { // the key has one word
		p.state[i] = (p.state[i] ^ (p.state[i-1]^p.state[i-1]>>30)*1664525) + seed
		i = p.wrap(i + 1)
	}
	for range 623 {
		p.state[i] = (p.state[i] ^ (p.state[i-1]^p.state[i-1]>>30)*1566083941) - uint32(i)
		i = p.wrap(i + 1)
	}
	p.state[0] = 1 << 31
	return p
}

func (p *python) wrap(i int) int {
	if i == 624 {
		p.state[0] = p.state[623]
		return 1
	}
	return i
}

func (p *python) uint32() uint32 {
	if p.next == 624 {
		for i := range p.state {
			y := p.state[i]&(1<<31) | p.state[(i+1)%624]&(1<<31-1)
			p.state[i] = p.state[(i+397)%624] ^ y>>1 ^ y&1*0x9908b0df
		}
		p.next = 0
	}
	y := p.state[p.next]
	p.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// below is CPython's randrange(n): it samples as many bits as n has until the value is below n.
func (p *python) below(n int) int {
	for {
		if r := int(p.uint32() >> (32 - bits.Len(uint(n)))); r < n {
			return r
		}
	}
}
