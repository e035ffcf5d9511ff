package dist

import (
	"strings"
	"testing"
	"time"
)

// TestLook: rank 0 names the ranks that hang, and those that are missing in the exchange that the others wait in.
func TestLook(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		name         string
		entered      int           // by rank 0
		waiting      time.Duration // of rank 0
		told         [2]message    // by ranks 1 and 2
		gone, silent int           // a rank; 0 = none
		want         string
	}{
		{"all work", 3, 0, [2]message{{Entered: 2}, {Entered: 3}}, 0, 0, ""},
		{"a short wait", 3, 70 * time.Second, [2]message{{Entered: 2}, {Entered: 3, Waiting: 70}}, 0, 0, ""},
		{"one is missing", 3, 80 * time.Second, [2]message{{Entered: 2}, {Entered: 3, Waiting: 70}}, 0, 0, "waited for rank 1 for 80.0 s"},
		{"two are missing", 3, 80 * time.Second, [2]message{{Entered: 2}, {Entered: 1}}, 0, 0, "waited for rank 1 and rank 2 for 80.0 s"},
		{"one has finished", 3, 80 * time.Second, [2]message{{Entered: 2}, {Entered: 3, Waiting: 90}}, 1, 0, "waited for rank 1, which has finished for 90.0 s"},
		{"an earlier exchange does not count", 2, 90 * time.Second, [2]message{{Entered: 3, Waiting: 10}, {Entered: 3, Waiting: 10}}, 0, 0, ""},
		{"all wait", 3, 80 * time.Second, [2]message{{Entered: 3, Waiting: 80}, {Entered: 3, Waiting: 80}}, 0, 0, "the network between the ranks is down"},
		{"one is silent", 3, 0, [2]message{{Entered: 3}, {Entered: 3}}, 0, 2, "rank 2 has not responded for 51.0 s"},
		{"one was silent before it finished", 3, 0, [2]message{{Entered: 3}, {Entered: 3}}, 2, 2, ""},
	} {
		w := newWatch(0, 100*time.Second, map[int]*link{1: nil, 2: nil})
		w.now = func() time.Time { return now }
		if w.entered = c.entered; c.waiting > 0 {
			w.since = now.Add(-c.waiting)
		}
		for i, m := range c.told {
			w.told[i+1], w.heard[i+1] = m, now
		}
		w.gone[c.gone], w.heard[c.silent] = true, now.Add(-51*time.Second)
		delete(w.heard, 0)
		for range 20 { // ranks come in any order
			if got := w.look(); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Fatalf("%s: %q, want %q", c.name, got, c.want)
			}
		}
	}
}
