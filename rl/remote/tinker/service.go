// Package tinker trains a language model on a service with Tinker's API, such as Thinking Machines', SkyRL or rltrain serve
// --train. The weights, the optimizer and the sampler are there. Here are the tasks, the rewards and the losses: the service
// computes log π of the targets, the algorithm its loss L of them, and the service gets ∂L/∂log π back.
package tinker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rltrain/rltrain/internal/jsonapi"
	"github.com/rltrain/rltrain/internal/tinker"
	"github.com/rltrain/rltrain/internal/transfer"
)

// Limits.
const (
	mostBytes = 1 << 30          // of a response
	beat      = 10 * time.Second // between signs of life
	slowest   = 10 * time.Minute // of a response
	shortest  = 50 * time.Millisecond
	longest   = 5 * time.Second // between two attempts
)

// service is a connection to a service.
type service struct {
	url      string // without a path
	client   *http.Client
	key      string
	patience time.Duration // for a service that does not respond
	session  string
	masks    bool               // it leaves out targets that a mask of the client's leaves out
	binary   bool               // it knows protocol buffers, which are shorter and quicker than JSON
	stop     context.CancelFunc // of the heartbeat
}

// keyed sends the key with each request, in the header of Tinker's clients.
type keyed struct {
	key string
	to  http.RoundTripper
}

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	if k.key != "" {
		r = r.Clone(r.Context())
		r.Header.Set("X-API-Key", k.key)
	}
	return k.to.RoundTrip(r)
}

// connect opens a session and keeps it alive until close.
func connect(ctx context.Context, address, key string, patience time.Duration) (*service, error) {
	s := &service{url: strings.TrimRight(address, "/"), key: key, patience: patience}
	s.client = &http.Client{
		Timeout:       slowest,
		Transport:     keyed{key, &http.Transport{MaxIdleConnsPerHost: mostInFlight, IdleConnTimeout: time.Minute}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // nobody else gets the key
	}
	var made struct {
		Session string `json:"session_id"`
	}
	body := map[string]any{"type": "create_session", "tags": []string{}, "user_metadata": map[string]any{}, "sdk_version": "0.3.0"}
	if err := s.post(ctx, "create_session", body, &made, true); err != nil {
		return nil, err
	}
	s.session = made.Session
	var config struct {
		Examples bool `json:"proto_write_fwdbwd"`
		Forward  bool `json:"fwd_via_fwdbwd"`
	}
	if err := s.send(ctx, http.MethodPost, "client/config", map[string]any{"sdk_version": "0.38.0"}, &config); err == nil { // older services have none
		s.binary = config.Examples && config.Forward
	}
	alive, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() {
		tick := time.NewTicker(beat)
		defer tick.Stop()
		for {
			select {
			case <-alive.Done():
				return
			case <-tick.C:
				// A failure shows in the next request that matters.
				_ = s.send(alive, http.MethodPost, "session_heartbeat", map[string]any{"type": "session_heartbeat", "session_id": s.session}, nil)
			}
		}
	}()
	return s, nil
}

func (s *service) close() {
	s.stop()
	s.client.CloseIdleConnections()
}

// reply is a response as it came.
type reply struct {
	data   []byte
	binary bool // a protocol buffer
}

// send sends one request. A *reply gets the response as it is.
func (s *service) send(ctx context.Context, method, path string, body, into any) (err error) {
	data, kind := []byte(nil), "application/json"
	if examples, ok := body.(*tinker.Examples); ok && s.binary {
		data, kind = examples.Proto(), tinker.Protobuf
	} else if body != nil {
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, s.url+"/api/v1/"+path, bytes.NewReader(data))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", kind)
	if s.binary {
		r.Header.Set("Accept", "application/json, "+tinker.Protobuf)
	}
	data, header, err := jsonapi.Send(s.client, r, mostBytes)
	if err != nil || into == nil {
		return err
	}
	if as, ok := into.(*reply); ok {
		*as = reply{data, header.Get("Content-Type") == tinker.Protobuf}
		return nil
	}
	return jsonapi.Decode(data, into)
}

// is says whether err is a response with one of these codes.
func is(err error, codes ...int) bool {
	var status *jsonapi.Status
	return errors.As(err, &status) && slices.Contains(codes, status.Code)
}

// untaken says whether a request that failed has certainly not reached the service.
func untaken(err error) bool {
	var op *net.OpError
	return is(err, http.StatusTooManyRequests, http.StatusServiceUnavailable) || errors.As(err, &op) && op.Op == "dial"
}

// post sends a request until the service takes it. repeat allows it to arrive twice.
func (s *service) post(ctx context.Context, path string, body, into any, repeat bool) error {
	began := time.Now()
	for pause := shortest; ; pause = min(2*pause, longest) {
		err := s.send(ctx, http.MethodPost, path, body, into)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case is(err, http.StatusRequestTimeout): // the service works on it
			began, pause = time.Now(), shortest
		case !errors.As(err, new(jsonapi.Transient)):
			return fmt.Errorf("%s: %s: %w", s.url, path, err)
		case !repeat && !untaken(err):
			return fmt.Errorf("%s: %s: the connection failed and the service may have taken the request already: %w", s.url, path, err)
		case time.Since(began) > s.patience:
			return fmt.Errorf("%s: %s: no success in %v: %w", s.url, path, s.patience, err)
		}
		if err := transfer.Wait(ctx, pause); err != nil {
			return err
		}
	}
}

// result waits for the result of a request. into may be a protocol buffer.
func (s *service) result(ctx context.Context, id string, into any) error {
	body := map[string]any{"request_id": id}
	for {
		var answer reply
		asked := time.Now()
		err := s.post(ctx, "retrieve_future", body, &answer, true)
		if is(err, http.StatusGone, http.StatusNotFound) {
			return fmt.Errorf("%s: the service has lost request %s, as after a restart; resume the run: %w", s.url, id, errors.Unwrap(err))
		}
		if err != nil {
			return err
		}
		if message, ok := into.(interface{ UnmarshalProto([]byte) error }); ok && answer.binary {
			err = message.UnmarshalProto(answer.data)
		} else {
			var state struct {
				Type  string `json:"type"`
				Error string `json:"error"`
			}
			err = json.Unmarshal(answer.data, &state)
			if err == nil && state.Type == "try_again" {
				if err := transfer.Wait(ctx, shortest-time.Since(asked)); err != nil { // of a service that does not wait itself
					return err
				}
				continue
			}
			if state.Error != "" {
				return fmt.Errorf("%s: %s", s.url, state.Error)
			}
			err = cmp.Or(err, json.Unmarshal(answer.data, into))
		}
		if err != nil {
			return fmt.Errorf("%s: the result of request %s: %w", s.url, id, err)
		}
		return nil
	}
}
