package play

import (
	"context"
	"errors"
	"sync"

	"github.com/rltrain/rltrain/envs"
	"github.com/rltrain/rltrain/envs/dataset"
	"github.com/rltrain/rltrain/envs/openenv"
	"github.com/rltrain/rltrain/envs/tools"
)

// callsPerTurn bounds the tool calls of an episode, by its turns.
const callsPerTurn = 4

// serverGame is an episode on an OpenEnv server.
type serverGame struct {
	*world
	begin dataset.Object // data of reset

	lock    sync.Mutex // close may come while a step is late
	session *openenv.Session
	turns   *tools.Turns // of an environment with tools
	closed  bool
}

func (g *serverGame) reset(ctx context.Context) (answer, error) {
	session, r, err := g.server.Begin(ctx, g.begin)
	if err != nil {
		return answer{}, err
	}
	g.lock.Lock()
	closed := g.closed
	g.session = session
	g.lock.Unlock()
	if closed { // it could not end the session that was not there yet
		g.release()
		return answer{}, errors.New("the episode is closed")
	}
	a := answer{reward: r.Reward, done: r.Done}
	if g.tools != nil {
		g.turns = tools.NewTurns(session, g.format, callsPerTurn*g.options.MaxTurns, false)
		a.used = g.turns.Used()
	}
	text, err := r.Text()
	switch {
	case err != nil:
		return a, err
	case text == "" && g.system == "":
		return a, errors.New("the observation of reset is empty; say with --system-prompt what to do")
	case text != "":
		a.observation = []envs.Message{{Role: envs.RoleUser, Content: envs.Quoted(text)}}
	default: // a conversation begins with the user's message
		a.observation = []envs.Message{{Role: envs.RoleSystem, Content: g.system}, {Role: envs.RoleUser, Content: "Begin."}}
	}
	return a, nil
}

func (g *serverGame) step(ctx context.Context, said envs.Action) (answer, error) {
	g.lock.Lock()
	session := g.session
	g.lock.Unlock()
	if session == nil {
		return answer{}, errors.New("the episode is closed")
	}
	if g.turns != nil {
		return g.call(ctx, session, said)
	}
	r, err := session.Step(ctx, said.Text)
	if errors.As(err, new(openenv.ActionError)) {
		return answer{observation: []envs.Message{{Role: envs.RoleUser, Content: "error: " + envs.Quoted(err.Error())}}, malformed: true}, nil
	}
	if err != nil {
		return answer{}, err
	}
	a := answer{reward: r.Reward, done: r.Done}
	shown, err := r.Text()
	if shown != "" || !r.Done {
		a.observation = []envs.Message{{Role: envs.RoleUser, Content: envs.Quoted(shown)}}
	}
	return a, err
}

// call runs the tool calls of a message. A message without calls ends the episode.
func (g *serverGame) call(ctx context.Context, session *openenv.Session, action envs.Action) (answer, error) {
	said, results, err := g.turns.Answer(ctx, action)
	if err != nil {
		return answer{}, err
	}
	r, err := session.Called()
	used := g.turns.Used()
	return answer{observation: results, reward: r.Reward, done: r.Done || results == nil, said: said, used: used, malformed: used.Malformed > 0}, err
}

func (g *serverGame) release() {
	g.lock.Lock()
	session := g.session
	g.session = nil
	g.lock.Unlock()
	if session != nil {
		_ = session.Close()
	}
}

func (g *serverGame) close() {
	g.lock.Lock()
	g.closed = true
	g.lock.Unlock()
	g.release()
}
