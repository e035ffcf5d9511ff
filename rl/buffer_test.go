package rl

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func filled(capacity, n int) *Buffer {
	b := NewBuffer(capacity)
	rewards, values, done := randomRollout(6, n)
	for i := range n {
		b.Add(Step{Sample: 10 + i, Action: i % 3, LogProb: -0.1 * float32(i+1), Value: values[i], Reward: rewards[i], Done: done[i]})
	}
	return b
}

func TestBufferKeepsTheNewestSteps(t *testing.T) {
	for _, test := range []struct {
		capacity, added int
		want            []int
	}{
		{0, 5, []int{10, 11, 12, 13, 14}},
		{3, 2, []int{10, 11}},
		{3, 3, []int{10, 11, 12}},
		{3, 5, []int{12, 13, 14}},
		{1, 4, []int{13}},
	} {
		b := filled(test.capacity, test.added)
		if diff := cmp.Diff(test.want, b.Sample); diff != "" {
			t.Errorf("capacity %d after %d steps (-want +got):\n%s", test.capacity, test.added, diff)
		}
		for name, n := range map[string]int{"action": len(b.Action), "logprob": len(b.LogProb), "value": len(b.Value), "reward": len(b.Reward), "done": len(b.Done)} {
			if n != b.Len() {
				t.Errorf("capacity %d: %d entries of %s, want %d", test.capacity, n, name, b.Len())
			}
		}
	}
}

func TestBufferEvictionKeepsMemoryBounded(t *testing.T) {
	b := filled(100, 100000)
	if b.Len() != 100 || cap(b.Sample) > 1000 {
		t.Errorf("length %d, room %d after 100000 steps into a capacity of 100", b.Len(), cap(b.Sample))
	}
}

func TestBufferFinishAndWhiten(t *testing.T) {
	b := NewBuffer(0)
	for i, reward := range []float32{1, 0, 1} {
		b.Add(Step{Sample: i, Value: 0.5, Reward: reward, Done: true})
	}
	b.Finish(0.99, 0.95, 0)
	if diff := cmp.Diff([]float32{0.5, -0.5, 0.5}, b.Advantage, near); diff != "" {
		t.Errorf("advantage (-want +got):\n%s", diff)
	}
	b.Whiten()
	if diff := cmp.Diff([]float32{0.70710677, -1.4142135, 0.70710677}, b.Advantage, near); diff != "" {
		t.Errorf("whitened advantage (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]float32{1, 0, 1}, b.Return, near); diff != "" {
		t.Errorf("return after whitening (-want +got):\n%s", diff)
	}
	b.Add(Step{Done: true})
	if b.Advantage != nil || b.Return != nil {
		t.Error("stale advantages survive Add")
	}
}

func TestBufferMinibatches(t *testing.T) {
	b := filled(0, 10)
	batches := b.Minibatches(Stream(1), 4)
	var sizes []int
	for _, batch := range batches {
		sizes = append(sizes, len(batch))
	}
	if diff := cmp.Diff([]int{4, 4, 2}, sizes); diff != "" {
		t.Errorf("sizes (-want +got):\n%s", diff)
	}
	all := slices.Concat(batches...)
	if slices.IsSorted(all) {
		t.Error("the indices are not shuffled")
	}
	slices.Sort(all)
	if diff := cmp.Diff([]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, all); diff != "" {
		t.Errorf("every index once (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(batches, b.Minibatches(Stream(1), 4)); diff != "" {
		t.Errorf("the same stream deals differently:\n%s", diff)
	}
	if cmp.Equal(batches, b.Minibatches(Stream(2), 4)) {
		t.Error("another stream deals the same batches")
	}
	if got := NewBuffer(0).Minibatches(Stream(1), 4); len(got) != 0 {
		t.Errorf("an empty buffer deals %v", got)
	}
}

func TestBufferStateRoundTrip(t *testing.T) {
	for _, finish := range []bool{false, true} {
		b := filled(7, 20)
		if finish {
			b.Finish(0.99, 0.95, 0.3)
			b.Whiten()
		}
		encoded, err := json.Marshal(b.State())
		if err != nil {
			t.Fatal(err)
		}
		var state BufferState
		if err := json.Unmarshal(encoded, &state); err != nil {
			t.Fatal(err)
		}
		restored := NewBuffer(0)
		if err := restored.Restore(state); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(b, restored, cmp.AllowUnexported(Buffer{})); diff != "" {
			t.Errorf("finished %t (-before +after):\n%s", finish, diff)
		}
		restored.Add(Step{Sample: 99})
		if restored.Len() != 7 || b.Sample[0] == restored.Sample[0] {
			t.Error("the restored buffer lost its capacity or shares memory")
		}
	}
}

func TestBufferRestoreRefusesBrokenStates(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*BufferState)
		want   string
	}{
		"short field":           {func(s *BufferState) { s.Reward = s.Reward[1:] }, "field reward has 4 entries"},
		"advantage alone":       {func(s *BufferState) { s.Return = nil }, "advantage and return"},
		"more than it can hold": {func(s *BufferState) { s.Capacity = 3 }, "capacity 3"},
		"negative capacity":     {func(s *BufferState) { s.Capacity = -1 }, "capacity -1"},
	} {
		b := filled(0, 5)
		b.Finish(1, 1, 0)
		state := b.State()
		test.change(&state)
		if err := b.Restore(state); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
		if b.Len() != 5 {
			t.Errorf("%s: a refused state changed the buffer", name)
		}
	}
}

func BenchmarkBufferAddFinish(b *testing.B) {
	rewards, values, done := randomRollout(7, 2000)
	for b.Loop() {
		buffer := NewBuffer(2000)
		for i := range rewards {
			buffer.Add(Step{Sample: i, Value: values[i], Reward: rewards[i], Done: done[i]})
		}
		buffer.Finish(0.99, 0.95, 0)
		buffer.Whiten()
	}
}
