package serve

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/rltrain/rltrain/rl/policy"
)

// form is the format of a response.
type form struct {
	id, object, piece string // piece is the object of a stream's chunks
	lane              *lane
	job               *job
	echo              []string // texts of the prompts, which choices begin with; nil = without
	top               int      // alternatives of each token; −1 = no log-probs
	choice            func(*part) any
	recorded          *recordedCall                // of a session; nil = none
	scored            map[int][]policy.TopLogProbs // of prompts without a completion: all of their choices are equal
}

// chosen describes a part of the response, which a session records.
func (f *form) chosen(p *part) (any, error) {
	c := f.choice(p)
	if f.recorded == nil {
		return c, nil
	}
	one := c.(chatChoice)
	return c, f.recorded.hear(f.lane.policy, cmp.Or(one.Message, one.Delta), p.done)
}

func newID() string {
	var random [12]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// read decodes the body of a request for completions and returns the lane of its model.
func (s *Server) read(w http.ResponseWriter, r *http.Request, into any, neutral map[string][]string, q *sampling) (*lane, error) {
	if s.stops() {
		return nil, errStopped
	}
	if s.engine.full() {
		return nil, errBusy
	}
	if err := s.readBody(w, r, longestBody, into, neutral); err != nil {
		return nil, err
	}
	if q.Model == "" {
		return nil, bad("model", "model is missing")
	}
	l, err := s.lane(q.Model)
	if err == nil && l.policy == nil {
		err = errNoText
	}
	return l, err
}

// prepare runs f, which decodes size bytes of a request or turns them into tokens, when one of a few places for that is free.
// Short texts have places of their own, so that they do not wait for long ones.
func (s *Server) prepare(ctx context.Context, size int, f func() error) error {
	places := s.preparing
	if size > shortText {
		places = s.preparingLong
	}
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
		return f()
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write runs a job and writes the response. It cancels the job on a timeout or if the client disconnects.
func (s *Server) write(w http.ResponseWriter, r *http.Request, q *sampling, f *form) error {
	ctx := r.Context()
	f.job.options.Special = !or(q.Special, true)
	f.job.stream = q.Stream && !f.evaluated()
	f.job.raw = s.config.Raw || greedy(f.job.options.Sampling)
	if f.job.options.MaxNew == 0 {
		f.job.unwritten()
	} else if err := s.engine.submit(f.lane, f.job); err != nil {
		return err
	}
	tokens := 0
	for _, ids := range f.job.prompts {
		tokens += len(ids)
	}
	s.figures.read(f.lane.name, tokens)
	count := usage{Prompt: tokens}
	if q.Stream {
		return s.stream(ctx, w, q, f, count)
	}
	return s.whole(ctx, w, f, count)
}

// next waits for news of a job. It returns an error on a timeout, a disconnect or a stop.
func (s *Server) next(ctx context.Context, j *job) (all []news, over bool, err error) {
	select {
	case <-j.wake:
		return j.heard()
	case <-ctx.Done():
		s.engine.cancel(j)
		s.figures.abandoned()
		return nil, true, ctx.Err()
	case <-s.engine.finished:
		if all, over, err := j.heard(); over {
			return all, true, err
		}
		return nil, true, errStopped
	}
}

// whole writes the response after all completions are finished.
func (s *Server) whole(ctx context.Context, w http.ResponseWriter, f *form, count usage) error {
	choices := make([]any, len(f.job.prompts)*f.job.options.Samples)
	for over := false; !over; {
		all, ended, err := s.next(ctx, f.job)
		if err != nil {
			return err
		}
		over = ended
		for _, n := range all {
			count.Completion += len(n.done.IDs)
			p, err := s.finished(ctx, f, n)
			if err != nil {
				s.engine.cancel(f.job)
				return err
			}
			if choices[n.choice], err = f.chosen(p); err != nil {
				return err
			}
		}
	}
	count.Total = count.Prompt + count.Completion
	writeJSON(w, http.StatusOK, answer{f.id, f.object, time.Now().Unix(), f.lane.name, choices, &count})
	return nil
}

// stream writes the response as server-sent events.
func (s *Server) stream(ctx context.Context, w http.ResponseWriter, q *sampling, f *form, count usage) error {
	texts := make([]offsets, len(f.job.prompts)*f.job.options.Samples) // by choice
	events := &events{w: w}
	for over := false; !over; {
		all, ended, err := s.next(ctx, f.job)
		var parts []*part
		if err == nil {
			parts, err = s.parts(ctx, f, all)
		}
		if err != nil {
			s.engine.cancel(f.job)
			if events.begun {
				_, body := bodyOf(err)
				events.send(map[string]errorBody{"error": body})
				return nil
			}
			return err
		}
		over = ended
		for _, p := range parts {
			p.offsets = &texts[p.index]
			p.first = !p.offsets.begun
			p.offsets.begun = true
			count.Completion += p.written
			choice, err := f.chosen(p)
			if err != nil {
				s.engine.cancel(f.job)
				return err
			}
			events.send(answer{f.id, f.piece, time.Now().Unix(), f.lane.name, []any{choice}, nil})
		}
		if events.err != nil { // the client disconnected or does not read
			s.engine.cancel(f.job)
			s.figures.abandoned()
			return nil
		}
	}
	if q.StreamOptions != nil && q.StreamOptions.Usage {
		count.Total = count.Prompt + count.Completion
		events.send(answer{f.id, f.piece, time.Now().Unix(), f.lane.name, []any{}, &count})
	}
	events.data([]byte("[DONE]"))
	return nil
}

// gather merges the news by choice, in the order of choices. Text that the sampler holds back arrives with a later token.
func gather(all []news) []*part {
	parts := map[int]*part{}
	for _, n := range all {
		p := parts[n.choice]
		if p == nil {
			p = &part{index: n.choice}
			parts[n.choice] = p
		}
		p.text += n.text
		p.ids, p.logs = append(p.ids, n.ids...), append(p.logs, n.logs...)
		p.written = len(p.ids)
		if n.done != nil {
			p.done = n.done
		}
	}
	out := make([]*part, 0, len(parts))
	for _, index := range slices.Sorted(maps.Keys(parts)) {
		out = append(out, parts[index])
	}
	return out
}

// events are server-sent events.
type events struct {
	w     http.ResponseWriter
	begun bool
	err   error
}

func (e *events) send(value any) {
	data, err := json.Marshal(value)
	if err != nil {
		e.err = err
		return
	}
	e.data(data)
}

func (e *events) data(data []byte) {
	if e.err != nil {
		return
	}
	if !e.begun {
		e.begun = true
		e.w.Header().Set("Content-Type", "text/event-stream")
		e.w.Header().Set("Cache-Control", "no-store")
		e.w.WriteHeader(http.StatusOK)
	}
	control := http.NewResponseController(e.w)
	_ = control.SetWriteDeadline(time.Now().Add(writePatience)) // not all writers support it
	if _, e.err = e.w.Write(bytes.Join([][]byte{[]byte("data: "), data, []byte("\n\n")}, nil)); e.err == nil {
		e.err = control.Flush()
	}
}
