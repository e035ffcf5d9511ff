package openenv

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/tools"
	"github.com/rltrain/rltrain/internal/within"
)

const (
	longestMessage = 8 << 20         // bytes of a message of a server
	closeLimit     = 5 * time.Second // that a server may take to end a session
)

// Session is an episode on a server, which holds one of the server's places until it is closed.
type Session struct {
	server *Server
	conn   *websocket.Conn
	heard  chan []byte   // messages of the server
	ended  chan struct{} // closed when the connection has ended, after err is set
	err    error
	close  sync.Once

	called Result // what the tool calls since the last Called gave
	failed error
}

// lostError is a connection that could not be made, or has ended.
type lostError struct{ error }

func (e lostError) Unwrap() error { return e.error }

// connect opens a session. The server may still refuse it with its first message.
func (s *Server) connect(ctx context.Context) (*Session, error) {
	conn, response, err := websocket.Dial(ctx, s.base+"/ws", &websocket.DialOptions{HTTPClient: s.client})
	if err != nil {
		if response != nil && response.Body != nil {
			_ = response.Body.Close()
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, lostError{err}
	}
	conn.SetReadLimit(longestMessage)
	e := &Session{server: s, conn: conn, heard: make(chan []byte, 1), ended: make(chan struct{})}
	s.hold(1)
	go e.read()
	return e, nil
}

// read passes the server's messages on. Pings are answered while it reads, so it reads all the time.
func (e *Session) read() {
	defer close(e.ended)
	for {
		_, text, err := e.conn.Read(context.Background())
		if err != nil {
			e.err = err
			return
		}
		select {
		case e.heard <- text:
		default:
			e.err = errors.New("the server sends messages that nothing asked for")
			_ = e.conn.CloseNow()
			return
		}
	}
}

// ask sends a message and returns the answer.
func (e *Session) ask(ctx context.Context, kind string, data dataset.Object) (Result, error) {
	limited, cancel := context.WithTimeout(ctx, e.server.timeout)
	defer cancel()
	question, err := dataset.Object{{Name: "type", Value: kind}, {Name: "data", Value: data}}.MarshalJSON()
	if err != nil {
		return Result{}, err
	}
	// A server without a free place says so before it reads: its message counts even if this one does not arrive.
	sent := e.conn.Write(limited, websocket.MessageText, question)
	if sent == nil {
		select {
		case text := <-e.heard:
			return readResult(text)
		case <-e.ended:
		case <-limited.Done():
			if ctx.Err() != nil {
				return Result{}, ctx.Err()
			}
			return Result{}, fmt.Errorf("%w: no answer to %s within %v", within.ErrTimeout, kind, e.server.timeout)
		}
	}
	if ctx.Err() != nil {
		return Result{}, ctx.Err()
	}
	_ = e.conn.CloseNow()
	<-e.ended
	select {
	case text := <-e.heard:
		return readResult(text)
	default:
	}
	switch {
	case errors.Is(e.err, websocket.ErrMessageTooBig):
		return Result{}, fmt.Errorf("the server's message is longer than %d bytes", longestMessage)
	case sent != nil && limited.Err() != nil:
		return Result{}, fmt.Errorf("%w: the server reads nothing for %v", within.ErrTimeout, e.server.timeout)
	}
	return Result{}, lostError{fmt.Errorf("the connection to the server ended: %w", e.err)}
}

// ActionError is the error of a completion that is no action of the environment. Its text is one for the model.
type ActionError struct{ error }

// Step takes a completion as an action.
func (e *Session) Step(ctx context.Context, text string) (Result, error) {
	action, err := e.server.form.action(text)
	if err != nil {
		return Result{}, ActionError{err}
	}
	r, err := e.ask(ctx, "step", action)
	var refused *serverError
	if errors.As(err, &refused) && refused.code == codeInvalid {
		return r, ActionError{fmt.Errorf("the environment refuses the action %s", shown(action))}
	}
	return r, err
}

// Call calls a tool of the environment; it is a tools.Caller. Its errors are for the model; Called returns the others.
func (e *Session) Call(ctx context.Context, call tools.Call) (string, error) {
	if e.called.Done || e.failed != nil {
		return "", errors.New("the episode is over")
	}
	arguments, err := dataset.Parse(string(call.Arguments))
	if err != nil {
		return "", fmt.Errorf("arguments: %w", err)
	}
	r, err := e.ask(ctx, "step", dataset.Object{{Name: "type", Value: "call_tool"}, {Name: "tool_name", Value: call.Name}, {Name: "arguments", Value: arguments}})
	var refused *serverError
	if err != nil {
		if !errors.As(err, &refused) || refused.code != codeInvalid {
			e.failed = err
		}
		return "", err
	}
	e.called.Reward += r.Reward
	e.called.Done = r.Done
	return tools.Shown(r.toolText())
}

// Called returns the sum of the rewards of the tool calls since the last Called, whether they ended the episode, and the error
// that did.
func (e *Session) Called() (Result, error) {
	r := e.called
	e.called = Result{}
	return r, e.failed
}

// Close gives the place back. It waits until the server has noticed.
func (e *Session) Close() error {
	e.close.Do(func() {
		defer e.server.hold(-1)
		ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
		defer cancel()
		if e.conn.Write(ctx, websocket.MessageText, []byte(`{"type":"close"}`)) == nil {
			select {
			case <-e.ended:
			case <-ctx.Done():
			}
		}
		_ = e.conn.CloseNow()
		<-e.ended
	})
	return nil
}
