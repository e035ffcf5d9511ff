package rl

import (
	"encoding/json"
	"testing"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/must"
)

// TestRoutesOfTrajectories: tokens keep the experts of the turn that first ran them, also in a checkpoint; tokens that no turn ran have
// none, nor those that an environment took away.
func TestRoutesOfTrajectories(t *testing.T) {
	var tr Trajectory
	sampled := func(ids ...int32) {
		for _, id := range ids {
			tr.AppendSampled(id, 0, 0)
		}
		tr.EndTurn(0)
	}
	tr.AppendGiven(1, 2)
	tr.AppendRoutes(Routes{10, 11, 20, 21, 30, 31}, 2, 2) // 1, 2 and 3; 4 has not run
	sampled(3, 4)
	tr.AppendGiven(5)
	tr.AppendRoutes(Routes{-9, -9, -9, -9, -9, -9, 40, 41, 50, 51, 60, 61, 70, 71}, 3, 1) // of 6, 7, 8 the environment keeps 6
	sampled(6)
	tr.BeginSegment(9, 8)
	tr.AppendRoutes(Routes{90, 91, 80, 81}, 1, 1)
	sampled(7)
	data := must.Get(json.Marshal(&tr))(t)
	tr = Trajectory{}
	must.Do(t, json.Unmarshal(data, &tr))
	must.Do(t, tr.Validate())
	x := tr.Sample(1)
	expect.Equal(t, Routes{10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61}, x.Earlier[0].Routes)
	expect.Equal(t, Routes{90, 91, 80, 81}, x.Routes)
	tr.Routes = tr.Routes[1:]
	expect.Error(t, tr.Validate(), "has 15 numbers of routes, 2 of each token")
	expect.Error(t, json.Unmarshal([]byte(`"AAAA"`), new(Routes)), "routes of 3 bytes")
}
