package serve

import (
	"context"
	"net/http"

	"github.com/rltrain/rltrain/rl/policy"
)

// What other packages add to a server: routes, metrics, and adapters that are not listed among its models.

// Answer answers a request. It returns an error, such as one of Refuse, before it has written anything.
type Answer func(w http.ResponseWriter, r *http.Request) error

// measure writes a metric of kind gauge or counter.
type measure func(kind, name, help string, value any)

// Add answers requests of another pattern, as those of [http.ServeMux] are written. Call it before Serve.
func (s *Server) Add(pattern string, answer Answer) {
	s.added = append(s.added, route{pattern, answer})
}

// AddMetrics calls write for /metrics. Call it before Serve.
func (s *Server) AddMetrics(write func(one func(kind, name, help string, value any))) {
	s.measures = append(s.measures, func(one measure) { write(one) })
}

// AllowSigned lets requests pass without the key if signed is true of them.
func (s *Server) AllowSigned(signed func(r *http.Request) bool) { s.opens = append(s.opens, signed) }

// Refuse is an error with the HTTP status of its response and the field of the request, if there is one.
func Refuse(status int, param, format string, args ...any) error {
	return refuse(status, param, format, args...)
}

// WriteJSON writes a response.
func WriteJSON(w http.ResponseWriter, status int, value any) { writeJSON(w, status, value) }

// Ask runs f on the thread of Serve, between two steps of generation, and waits for it. If ctx ends first, f still runs.
func (s *Server) Ask(ctx context.Context, f func() error) error { return s.engine.ask(ctx, f) }

// BeforeStop calls drain when the server stops, between the last request and the end of its thread. It should return when ctx
// ends.
func (s *Server) BeforeStop(drain func(ctx context.Context)) { s.drains = append(s.drains, drain) }

// Stopping is an error while the server stops.
func (s *Server) Stopping() error {
	if s.stops() {
		return errStopped
	}
	return nil
}

// Adapter generates with an adapter on the server's model.
type Adapter struct{ lane *lane }

// OpenAdapter makes an adapter of a policy that shares the server's model, and closes the policy after its last completion, or at
// once if there is an error. It must run within Ask.
func (s *Server) OpenAdapter(p *policy.CausalLM) (*Adapter, error) {
	if s.engine.sampler == nil {
		p.Close()
		return nil, errFailed
	}
	number, err := s.engine.sampler.Load(p)
	if err != nil {
		p.Close()
		return nil, err
	}
	a := &Adapter{&lane{name: s.config.Name, policy: p, adapter: number}}
	s.engine.lanes = append(s.engine.lanes, a.lane)
	return a, nil
}

// CloseAdapter frees an adapter after its last completion. No new one may be asked for.
func (s *Server) CloseAdapter(a *Adapter) { s.engine.order(func() { a.lane.retired = true }) }

// laneOf is the lane of an adapter; nil is the model.
func (s *Server) laneOf(a *Adapter) *lane {
	if a != nil {
		return a.lane
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.lanes[s.config.Name]
}

// Policy is the policy of an adapter, or of the model if a is nil. It may be used within Ask.
func (s *Server) Policy(a *Adapter) *policy.CausalLM { return s.laneOf(a).policy }

// Generate queues completions of a prompt. The function that it returns waits for them.
func (s *Server) Generate(a *Adapter, prompt []int32, o policy.GenerateOptions) (wait func(ctx context.Context) ([]policy.Completion, error), err error) {
	j := &job{prompts: [][]int32{prompt}, options: o}
	if err := s.engine.submit(s.laneOf(a), j); err != nil {
		return nil, err
	}
	s.figures.read(s.config.Name, len(prompt))
	return func(ctx context.Context) ([]policy.Completion, error) {
		all := make([]policy.Completion, o.Samples)
		for over := false; !over; {
			done, ended, err := s.next(ctx, j)
			if err != nil {
				return nil, err
			}
			over = ended
			for _, n := range done {
				all[n.choice] = *n.done
			}
		}
		return all, nil
	}, nil
}
