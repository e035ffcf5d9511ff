package rl

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
)

// Routes are the experts that tokens passed in a model with experts: for each token those of each layer that has some, −1 first if
// the router is to decide. Training sends tokens where they went while they were sampled, so that a router near a tie does not
// change log π (Ma et al. 2025, "Stabilizing MoE Reinforcement Learning by Aligning Training and Inference Routers").
type Routes []int16

// MarshalJSON writes the numbers as bytes, the low one first.
func (r Routes) MarshalJSON() ([]byte, error) {
	data, _ := binary.Append(nil, binary.LittleEndian, []int16(r)) // never fails
	return json.Marshal(data)
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (r *Routes) UnmarshalJSON(data []byte) error {
	var raw []byte
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	if len(raw)%2 != 0 {
		return fmt.Errorf("routes of %d bytes", len(raw))
	}
	*r = make(Routes, len(raw)/2)
	_, err := binary.Decode(raw, binary.LittleEndian, []int16(*r))
	return err
}

// AppendRoutes notes the routes of the last segment, so far unknown ones alone, before the first kept of a completion's tokens are
// appended. They are those of the segment and of all but the last of the completion.
func (t *Trajectory) AppendRoutes(routes Routes, completion, kept int) {
	start := t.segment(len(t.Tokens))
	context := len(t.Tokens) - start
	ran := context + completion - 1
	if len(routes) == 0 {
		return
	}
	t.RouteWidth = len(routes) / ran
	for len(t.Routes) < start*t.RouteWidth {
		t.Routes = append(t.Routes, -1)
	}
	known, until := len(t.Routes)-start*t.RouteWidth, min(ran, context+kept)*t.RouteWidth
	t.Routes = append(t.Routes, routes[min(known, until):until]...)
}

// routesOf are the routes of the tokens [from, to).
func (t *Trajectory) routesOf(from, to int) Routes {
	known := len(t.Routes)
	return t.Routes[min(from*t.RouteWidth, known):min(to*t.RouteWidth, known)]
}
