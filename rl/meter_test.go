package rl

import (
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

func TestMeterKinds(t *testing.T) {
	m := Meter{}
	for _, v := range []float64{2, 3, -1, 2} {
		m.Mean("mean", v, 2)
		m.Max("max", v)
		m.Min("min", v)
		m.Total("total", v)
		m.Last("last", v)
	}
	m.Mean("nothing counted", 5, 0)
	want := map[string]any{"mean": 6. / 8, "max": 3., "min": -1., "total": 6., "last": 2.}
	row := map[string]any{}
	m.Fill(row)
	expect.Equal(t, want, row)
	expect.Same(t, 0, m.Get("nowhere"), "a figure that was not measured has a value")
	m.Mean("kind", 4, 2)
	m.Max("kind", 1)
	expect.Same(t, 1.0, m.Get("kind"), "a figure of another kind")
}

func TestMeterSkipsNonFinite(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		m := Meter{}
		m.Mean("mean", bad, 1)
		m.Max("max", bad)
		m.Min("min", bad)
		m.Total("total", bad)
		m.Last("last", bad)
		expect.Same(t, 0, len(m), "%v is measured: %v", bad, m)
		m.Mean("mean", 1, 1)
		m.Mean("mean", bad, 1)
		m.Total("total", 1)
		m.Total("total", bad)
		m.Last("last", 1)
		m.Last("last", bad)
		m.Mean("large", math.MaxFloat64, 1)
		m.Mean("large", math.MaxFloat64, 1) // the sum is infinite
		expect.Same(t, math.MaxFloat64, m.Get("large"), "a mean")
		expect.True(t, m.Get("mean") == 1 && m.Get("total") == 1 && m.Get("last") == 1, "%v counts: %v", bad, m)
	}
}

// TestMergedMetersAreOneMeter splits measurements over two meters, with a JSON round trip.
func TestMergedMetersAreOneMeter(t *testing.T) {
	rng := Stream(11)
	whole, first, second := Meter{}, Meter{}, Meter{}
	for i := range 40 {
		part := first
		if i >= 25 {
			part = second
		}
		for _, m := range []Meter{whole, part} {
			v := math.Ldexp(float64(i%7)-3, i%5) // sums of these are exact in any order
			m.Mean("mean", v, float64(1+i%3))
			m.Max("max", v)
			m.Min("min", v)
			m.Total("total", v)
			m.Last("last", v)
		}
		whole.Last("noise", rng.NormFloat64())
	}
	second.Last("noise", whole.Get("noise"))
	merged := throughJSON(t, first)
	kept := throughJSON(t, merged.Clone())
	merged.Merge(throughJSON(t, second))
	expect.Equal(t, whole, merged)
	expect.Equal(t, kept, first, "a clone has changed with its meter")
}

func newReplay(t *testing.T, capacity int) *Replay {
	t.Helper()
	return must.Get(NewReplay(capacity))(t)
}

func returnsOf(r *Replay) []float64 {
	var returns []float64
	for _, e := range r.items {
		returns = append(returns, e.Return)
	}
	return returns
}

func TestReplayIsFirstInFirstOut(t *testing.T) {
	r := newReplay(t, 3)
	expect.True(t, r.Sample(Stream(1), 2) == nil, "an empty buffer deals")
	for i := range 3 {
		expect.Same(t, 0, r.Add(twoTurns(), []float64{float64(2 * i), float64(2*i + 1)}), "skipped")
	}
	expect.Equal(t, []float64{3, 4, 5}, returnsOf(r))
	skipped := r.Add(twoTurns(), []float64{nan, math.Inf(1)})
	expect.True(t, skipped == 2 && r.Len() == 3, "%d skipped, %d held", skipped, r.Len())
	seen := map[float64]bool{}
	for _, e := range r.Sample(Stream(1), 50) {
		seen[e.Return] = true
	}
	expect.Same(t, 3, len(seen), "50 samples saw %v", seen)
	expect.Same(t, "", cmp.Diff(r.Sample(Stream(2), 9), r.Sample(Stream(2), 9), cmpopts.EquateNaNs()), "the same stream deals differently")
}

func TestReplayEvictionKeepsMemoryBounded(t *testing.T) {
	r := newReplay(t, 10)
	tr := twoTurns()
	for range 20000 {
		r.Add(tr, []float64{1, 2})
	}
	expect.True(t, r.Len() == 10 && cap(r.items) <= 100, "%d held, room for %d", r.Len(), cap(r.items))
}

func TestReplayFile(t *testing.T) {
	r := newReplay(t, 5)
	for i := range 4 {
		tr := twoTurns()
		tr.Info = &envs.Info{Correct: true, FoundBy: "tag"}
		tr.BeginSegment(1)
		r.Add(tr, []float64{float64(i), 0.1})
	}
	path := filepath.Join(t.TempDir(), "buffer.jsonl")
	must.Do(t, r.Save(path))
	back := newReplay(t, 5)
	must.Do(t, back.Load(path))
	expect.Equal(t, r.State(), back.State(), cmpopts.EquateNaNs())
	small := newReplay(t, 2)
	small.Add(twoTurns(), []float64{9, 9})
	must.Do(t, small.Load(path))
	expect.Equal(t, []float64{3, 0.1}, returnsOf(small), "the newest fit")
}

func TestReplayRefusesFiles(t *testing.T) {
	const header = `{"format":"rltrain replay buffer 2","capacity":5,"entries":1}` + "\n"
	for name, test := range map[string]struct{ content, want string }{
		"pickle":        {"\x80\x05\x95", "this is a Python pickle"},
		"empty":         {"", "line 1: the file ends too early"},
		"first format":  {strings.Replace(header, "buffer 2", "buffer 1", 1), `line 1: format "rltrain replay buffer 1", want`},
		"other":         {"{\"format\":\"x\",\"capacity\":1,\"entries\":0}\n", "line 1: format"},
		"short":         {header, "line 2: the file ends too early"},
		"broken":        {header + "{}}\n", "line 2"},
		"unknown":       {header + `{"x":1}` + "\n", "line 2: not a line"},
		"turn of text":  {header + `{"trajectory":{"turns":[{"end":"2"}]}}` + "\n", "line 2: not a line … end"},
		"no tokens":     {header + `{"trajectory":{"tokens":[]},"turns":[0],"returns":[1]}` + "\n", "line 2: trajectory without tokens"},
		"no trajectory": {header + `{"turns":[0],"returns":[1]}` + "\n", "line 2: no trajectory"},
		"no turn":       {header + `{"trajectory":{"tokens":[1],"source":[0],"behavior_logprobs":[0],"logprobs":[0],"turns":[]},"turns":[0],"returns":[1]}` + "\n", "line 2: turn 0 of a trajectory of 0"},
		"more entries":  {strings.Replace(header, `"entries":1`, `"entries":0`, 1) + "{}\n", "line 2: more than the 0 entries"},
	} {
		path := must.File(t, "buffer", test.content)
		r := newReplay(t, 5)
		err := r.Load(path)
		expect.Error(t, err, path+": "+test.want)
		expect.Same(t, 0, r.Len(), "%s: turns of a refused file", name)
	}
	folder := t.TempDir()
	expect.Error(t, newReplay(t, 5).Load(folder), folder+": line 1: … directory")
	expect.Error(t, newReplay(t, 5).Load(filepath.Join(folder, "none")), "reading replay buffer: … none")
	expect.Error(t, newReplay(t, 5).Save(filepath.Join(folder, "none", "file")), "none")
	tr := twoTurns()
	for want, entry := range map[string]ReplayEntry{
		"entry 0: 0 turns and 0 returns": {tr, nil, nil}, "entry 0: 2 turns and 1 returns": {tr, []int{0, 1}, []float64{1}}, "entry 0: 1 turns and 2 returns": {tr, []int{0}, []float64{1, 2}},
		"entry 0: turn 2 of a trajectory of 2": {tr, []int{2}, []float64{1}}, "entry 0: turn -1 of": {tr, []int{-1}, []float64{1}},
		"turn 0 has the return NaN": {tr, []int{0}, []float64{nan}}, "turn 1 has the return -Inf": {tr, []int{1}, []float64{math.Inf(-1)}},
		"capacity 1 does not fit 2 experiences": {tr, []int{0, 1}, []float64{1, 2}},
	} {
		r := newReplay(t, 5)
		expect.Error(t, r.Restore(ReplayState{Capacity: 1, Entries: []ReplayEntry{entry}}), want)
		expect.True(t, r.Len() == 0 && r.capacity == 5, "%s: a refused state has changed the buffer", want)
	}
	infinite := newReplay(t, 5)
	infinite.Add(&Trajectory{LogProbs: []float32{float32(math.Inf(-1))}, Turns: []Turn{{1, 1}}}, []float64{1})
	expect.Error(t, infinite.Save(filepath.Join(folder, "infinite")), "infinite: … -Inf")
	three := twoTurns()
	three.AppendSampled(23, -1, -1)
	three.EndTurn(1)
	later := ReplayState{Capacity: 2, Entries: []ReplayEntry{{three, []int{1, 2}, []float64{7, 8}}}} // whose first turn has left the buffer
	r := newReplay(t, 5)
	must.Do(t, r.Restore(later))
	expect.Equal(t, later, r.State(), cmpopts.EquateNaNs())
	expect.Error(t, newReplay(t, 5).Restore(ReplayState{}), "capacity 0 is below 1")
	expect.Failure(NewReplay(0))(t, "capacity 0 is below 1")
}

func FuzzReadReplay(f *testing.F) {
	f.Add("\x80\x02")
	f.Add(`{"format":"rltrain replay buffer 2","capacity":5,"entries":1}` + "\n" +
		`{"trajectory":{"tokens":[1,2],"source":[0,1],"behavior_logprobs":[0,-1],"logprobs":[0,-1],"turns":[{"end":2,"reward":null}],"stop":"stop"},"turns":[0],"returns":[1]}` + "\n")
	f.Add(`{"format":"rltrain replay buffer 2","entries":-1}` + "\n")
	f.Fuzz(func(t *testing.T, content string) {
		items, err := readReplay(strings.NewReader(content))
		if err != nil {
			expect.Require(t, !strings.Contains(err.Error(), "\n"), "error %q", err)
			return
		}
		for _, e := range items {
			err = e.Trajectory.Validate()
			expect.Require(t, err == nil && e.Turn >= 0 && e.Turn < len(e.Trajectory.Turns) && isFinite(e.Return), "%+v: %v", e, err)
		}
	})
}
