package train

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/internal/tinker"
)

// session is a client.
type session struct{ seen time.Time }

// aboutOutputLayer is what clients hear that ask for more than the server trains.
const aboutOutputLayer = "rltrain adapts attention and MLP layers; train_unembed has no effect"

func (t *Trainer) createSession(*http.Request, []byte) (any, error) {
	id := newID()
	t.lock.Lock()
	defer t.lock.Unlock()
	if len(t.sessions) >= mostSessions {
		oldest := ""
		for id, s := range t.sessions {
			if oldest == "" || s.seen.Before(t.sessions[oldest].seen) {
				oldest = id
			}
		}
		t.end(oldest)
	}
	t.sessions[id] = &session{time.Now()}
	return map[string]any{"type": "create_session", "session_id": id, "info_message": aboutOutputLayer}, nil
}

// end forgets a session and its samplers; the lock is held. Its runs stay.
func (t *Trainer) end(id string) {
	delete(t.sessions, id)
	for other := range t.samplers {
		if strings.HasPrefix(other, id+":") {
			delete(t.samplers, other)
		}
	}
}

// touch checks that a session exists.
func (t *Trainer) touch(id string) error {
	t.lock.Lock()
	defer t.lock.Unlock()
	s := t.sessions[id]
	if s == nil {
		return serve.Refuse(http.StatusNotFound, "session_id", "session %.200q not found; create a session", id)
	}
	s.seen = time.Now()
	return nil
}

func (t *Trainer) heartbeat(_ *http.Request, data []byte) (any, error) {
	var o struct {
		ID string `json:"session_id"`
	}
	if err := decode(data, &o); err != nil {
		return nil, err
	}
	if t.touch(o.ID) != nil {
		return nil, serve.Refuse(http.StatusGone, "session_id", "session %.200q is gone", o.ID)
	}
	return map[string]any{"type": "session_heartbeat"}, nil
}

func (t *Trainer) finish(r *http.Request, _ []byte) (any, error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	t.end(r.PathValue("id"))
	return map[string]any{}, nil
}

// created is the result of create_model.
func (r *run) created(ctx context.Context) (tinker.Outcome, error) {
	return tinker.Reply{"type": "create_model", "model_id": r.ID}, r.ask(ctx, func() error { return nil })
}

func (t *Trainer) getInfo(_ *http.Request, data []byte) (any, error) {
	var o struct {
		ModelID string `json:"model_id"`
	}
	if err := decode(data, &o); err != nil {
		return nil, err
	}
	r, err := t.run(o.ModelID)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"type": "get_info", "model_id": r.ID, "is_lora": true, "lora_rank": r.Rank, "model_name": t.base.BaseModel, "optimizer_config": map[string]any{"type": "adamw"},
		"model_data": map[string]any{"model_name": t.base.BaseModel, "tokenizer_id": t.base.BaseModel},
	}, nil
}

// unload moves a run to disk: an idle one costs no memory.
func (t *Trainer) unload(_ *http.Request, data []byte) (any, error) {
	var at addressed
	return t.queue(data, &at, &at, func(_ context.Context, r *run) (tinker.Outcome, error) {
		return tinker.Reply{"type": "unload_model", "model_id": r.ID}, nil
	})
}

func (t *Trainer) weightsInfo(_ *http.Request, data []byte) (any, error) {
	var o struct {
		Path string `json:"tinker_path"`
	}
	if err := decode(data, &o); err != nil {
		return nil, err
	}
	c, err := t.at(o.Path)
	if err != nil {
		return nil, err
	}
	r := c.run
	return map[string]any{
		"base_model": r.BaseModel, "is_lora": true, "lora_rank": r.Rank, "train_unembed": false, "train_mlp": r.MLP, "train_attn": r.Attention,
		"optimizer_config": map[string]any{"type": "adamw"},
	}, nil
}
