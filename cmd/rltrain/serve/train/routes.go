package train

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"

	"github.com/rltrain/rltrain/cmd/rltrain/serve"
	"github.com/rltrain/rltrain/internal/tinker"
)

func newID() string {
	var random [12]byte
	_, _ = rand.Read(random[:]) // never fails
	return hex.EncodeToString(random[:])
}

// routes adds the API to the server.
func (t *Trainer) routes() {
	for name, answer := range map[string]func(r *http.Request, data []byte) (any, error){
		"client/config": t.clientConfig, "client/dynamic_config": constant(map[string]any{"refresh_interval_sec": 300}), "telemetry": constant(map[string]any{"status": "accepted"}),
		"create_session": t.createSession, "session_heartbeat": t.heartbeat, "sessions/{id}/finish": t.finish,
		"create_model": t.createModel, "get_info": t.getInfo, "unload_model": t.unload, "weights_info": t.weightsInfo,
		"forward": t.postExamples, "forward_backward": t.postExamples, "optim_step": t.optimStep,
		"save_weights": t.saver(trainingKind), "save_weights_for_sampler": t.saver(samplerKind), "save_weights_external": t.saver(externalKind), "load_weights": t.loadWeights,
		"create_sampling_session": t.createSampler, "asample": t.asample,
	} {
		limit := int64(longestOrder)
		if strings.HasPrefix(name, "forward") || name == "asample" || name == "telemetry" {
			limit = longestBody
		}
		t.server.Add("POST /api/v1/"+name, func(w http.ResponseWriter, r *http.Request) error {
			if encoding := r.Header.Get("Content-Encoding"); encoding != "" && encoding != "identity" {
				return serve.Refuse(http.StatusUnsupportedMediaType, "", "bodies encoded with %.40q are not supported", encoding)
			}
			var body []byte
			if err := t.server.ReadBody(w, r, limit, func(data []byte) error { body = data; return nil }); err != nil {
				return err
			}
			reply, err := answer(r, body)
			if err == nil {
				serve.WriteJSON(w, http.StatusOK, reply)
			}
			return err
		})
	}
	t.server.Add("POST /api/v1/retrieve_future", t.retrieve)
	t.restRoutes()
}

// decode reads the JSON of a request.
func decode(data []byte, into any) error {
	if err := json.Unmarshal(data, into); err != nil {
		return serve.Refuse(http.StatusUnprocessableEntity, "", "the body is not what the API asks for: %.300s", err.Error())
	}
	return nil
}

// constant answers every request alike.
func constant(reply any) func(*http.Request, []byte) (any, error) {
	return func(*http.Request, []byte) (any, error) { return reply, nil }
}

// promise tells the client where the result of a request will be.
func promise(id string, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return map[string]any{"request_id": id}, nil
}

// addressed is what requests for a run have.
type addressed struct {
	ModelID string `json:"model_id"`
	Seq     *int   `json:"seq_id"`
}

// queue decodes a request for a run into o, of which at is a part, and has do answer it when its turn comes.
func (t *Trainer) queue(data []byte, o any, at *addressed, do func(ctx context.Context, r *run) (tinker.Outcome, error)) (any, error) {
	wrong := decode(data, o)
	if wrong != nil {
		*at = numbered(data)
	}
	return t.submit(*at, 0, wrong, do)
}

// numbered reads what a request that is wrong elsewhere has of addressed.
func numbered(data []byte) (at addressed) {
	if json.Unmarshal(data, &at) != nil {
		return addressed{}
	}
	return at
}

// submit queues a request for a run. What is wrong with it the client hears with the result if the request has a number, since the
// requests after it wait for that number.
func (t *Trainer) submit(at addressed, bytes int64, wrong error, do func(ctx context.Context, r *run) (tinker.Outcome, error)) (any, error) {
	if wrong != nil && (at.ModelID == "" || at.Seq == nil) {
		return nil, wrong
	}
	r, err := t.run(at.ModelID)
	if err != nil {
		return nil, err
	}
	return promise(r.submit(at.Seq, bytes, func(ctx context.Context) (tinker.Outcome, error) {
		if wrong != nil {
			return nil, mistake{wrong}
		}
		return do(ctx, r)
	}))
}

// clientConfig chooses what newer clients send.
func (t *Trainer) clientConfig(*http.Request, []byte) (any, error) {
	return map[string]any{"pjwt_auth_enabled": false, "credential_default_source": "api_key", "parallel_fwdbwd_chunks": true, "proto_write_fwdbwd": true, "fwd_via_fwdbwd": true}, nil
}

// serves checks the name of the base model.
func (t *Trainer) serves(model string) error {
	if model != t.config.Name && model != t.base.BaseModel {
		return serve.Refuse(http.StatusBadRequest, "base_model", "base model %.200q is not served; available: %s", model, t.config.Name)
	}
	return nil
}

func (t *Trainer) createModel(_ *http.Request, data []byte) (any, error) {
	var o struct {
		Session   string         `json:"session_id"`
		Seq       int            `json:"model_seq_id"`
		BaseModel string         `json:"base_model"`
		Metadata  map[string]any `json:"user_metadata"`
		LoRA      *struct {
			Rank      int    `json:"rank"`
			Seed      *int64 `json:"seed"`
			MLP       *bool  `json:"train_mlp"`
			Attention *bool  `json:"train_attn"`
		} `json:"lora_config"`
		Optimizer struct {
			Type string `json:"type"`
		} `json:"optimizer_config"`
	}
	if err := decode(data, &o); err != nil {
		return nil, err
	}
	if err := t.serves(o.BaseModel); err != nil {
		return nil, err
	}
	bad := func(format string, args ...any) (any, error) {
		return nil, serve.Refuse(http.StatusBadRequest, "lora_config", format, args...)
	}
	switch {
	case o.LoRA == nil:
		return bad("lora_config is missing: this server trains LoRA adapters")
	case o.LoRA.Rank < 1 || o.LoRA.Rank > mostRank:
		return bad("rank %d is out of range; it must be 1 to %d", o.LoRA.Rank, mostRank)
	case !or(o.LoRA.MLP, true) && !or(o.LoRA.Attention, true):
		return bad("neither train_attn nor train_mlp is set, and this server does not adapt the output layer")
	case o.Optimizer.Type != "" && o.Optimizer.Type != "adamw":
		return bad("optimizer %.40q is not supported; use adamw", o.Optimizer.Type)
	}
	d := Run{Session: o.Session, Rank: o.LoRA.Rank, MLP: or(o.LoRA.MLP, true), Attention: or(o.LoRA.Attention, true), Metadata: o.Metadata}
	if o.LoRA.Seed != nil {
		d.Seed = uint64(*o.LoRA.Seed)
	} else {
		d.Seed = uint64(time.Now().UnixNano())
	}
	r, err := t.create(d, o.Seq)
	if err != nil {
		return nil, err
	}
	return promise(r.submit(new(int), 0, r.created))
}

// create opens the run of a session with a number.
func (t *Trainer) create(d Run, seq int) (*run, error) {
	if seq < 0 {
		return nil, serve.Refuse(http.StatusBadRequest, "model_seq_id", "model_seq_id %d is negative", seq)
	}
	if err := t.touch(d.Session); err != nil {
		return nil, err
	}
	d.ID, d.BaseModel = fmt.Sprintf("%s:train:%d", d.Session, seq), t.base.BaseModel
	return t.open(d)
}

// postExamples queues a forward pass.
func (t *Trainer) postExamples(q *http.Request, data []byte) (any, error) {
	e := &tinker.Examples{}
	kind, _, _ := mime.ParseMediaType(q.Header.Get("Content-Type"))
	var wrong error
	if kind != tinker.Protobuf {
		wrong = decode(data, e)
	} else if err := e.UnmarshalProto(data); err != nil {
		wrong = serve.Refuse(http.StatusUnprocessableEntity, "", "the body is not a ForwardBackwardRequest: %.300s", err.Error())
	}
	at := addressed{e.ModelID, e.Seq}
	if wrong != nil && kind != tinker.Protobuf {
		at = numbered(data)
	}
	return t.submit(at, int64(len(data)), wrong, func(ctx context.Context, r *run) (tinker.Outcome, error) { return r.forward(ctx, e) })
}

func (t *Trainer) optimStep(_ *http.Request, data []byte) (any, error) {
	var o struct {
		addressed
		Other json.RawMessage `json:"optimizer_params"`
		Adam  *adam           `json:"adam_params"`
	}
	o.Adam = defaultAdam()
	return t.queue(data, &o, &o.addressed, func(ctx context.Context, r *run) (tinker.Outcome, error) {
		if len(o.Other) > 0 || o.Adam == nil {
			return nil, mistake{errors.New("optimizer_params is not supported; use adam_params")}
		}
		return r.step(ctx, o.Adam)
	})
}

// saver saves weights of a kind. Those for a sampler without a name make a sampling session.
func (t *Trainer) saver(kind string) func(*http.Request, []byte) (any, error) {
	return func(_ *http.Request, data []byte) (any, error) {
		var o saveOrder
		return t.queue(data, &o, &o.addressed, func(ctx context.Context, r *run) (tinker.Outcome, error) {
			if kind == samplerKind && o.Name == nil && o.Sampling != nil {
				return r.publish(ctx, *o.Sampling)
			}
			return r.save(ctx, o, kind)
		})
	}
}

// loadWeights loads a checkpoint into a run, or makes a run of it.
func (t *Trainer) loadWeights(_ *http.Request, data []byte) (any, error) {
	var o struct {
		ModelID   string         `json:"model_id"`
		Seq       *int           `json:"seq_id"`
		Session   string         `json:"session_id"`
		ModelSeq  *int           `json:"model_seq_id"`
		Metadata  map[string]any `json:"user_metadata"`
		Path      string         `json:"path"`
		Optimizer bool           `json:"optimizer"`
	}
	if err := decode(data, &o); err != nil {
		return nil, err
	}
	if (o.ModelID == "") == (o.Session == "") {
		return nil, serve.Refuse(http.StatusBadRequest, "", "want one of model_id and session_id")
	}
	if o.ModelID != "" {
		r, err := t.run(o.ModelID)
		if err != nil {
			return nil, err
		}
		return promise(r.submit(o.Seq, 0, func(ctx context.Context) (tinker.Outcome, error) { return r.load(ctx, o.Path, o.Optimizer) }))
	}
	c, err := t.at(o.Path)
	if err != nil {
		return nil, err
	}
	if c.run.BaseModel != t.base.BaseModel {
		return nil, serve.Refuse(http.StatusBadRequest, "path", "checkpoint %s is of base model %s, which is not served", c.path(), c.run.BaseModel)
	}
	d := c.run.Run
	d.Session, d.Metadata = o.Session, o.Metadata
	r, err := t.create(d, or(o.ModelSeq, 0))
	if err != nil {
		return nil, err
	}
	return promise(r.submit(new(int), 0, func(ctx context.Context) (tinker.Outcome, error) { return r.load(ctx, o.Path, o.Optimizer) }))
}

func (t *Trainer) createSampler(_ *http.Request, data []byte) (any, error) {
	var o struct {
		Session   string `json:"session_id"`
		Seq       int    `json:"sampling_session_seq_id"`
		BaseModel string `json:"base_model"`
		Path      string `json:"model_path"`
	}
	if err := decode(data, &o); err != nil {
		return nil, err
	}
	if err := t.touch(o.Session); err != nil {
		return nil, err
	}
	dir, err := t.folderOf(&sampleOrder{BaseModel: o.BaseModel, Path: o.Path})
	if err != nil {
		return nil, err
	}
	s := &sampler{id: fmt.Sprintf("%s:sample:%d", o.Session, o.Seq), path: o.Path, dir: dir}
	t.lock.Lock()
	defer t.lock.Unlock()
	if t.samplers[s.id] == nil {
		t.samplers[s.id] = s
	}
	return map[string]any{"type": "create_sampling_session", "sampling_session_id": s.id}, nil
}

func (t *Trainer) asample(q *http.Request, data []byte) (any, error) {
	o := &sampleOrder{}
	if err := decode(data, o); err != nil {
		return nil, err
	}
	id, n, err := t.sample(q.Context(), o)
	if err != nil {
		return nil, err
	}
	sequences := make([]string, n)
	for i := range sequences {
		sequences[i] = fmt.Sprintf("%s:%d", id, i)
	}
	return map[string]any{"request_id": id, "sample_sequence_ids": sequences}, nil
}

// retrieve waits for the result of a request.
func (t *Trainer) retrieve(w http.ResponseWriter, r *http.Request) error {
	var o struct {
		ID string `json:"request_id"`
	}
	if err := t.server.ReadBody(w, r, longestOrder, func(data []byte) error { return decode(data, &o) }); err != nil {
		return err
	}
	fut := t.futures.get(o.ID)
	if fut == nil {
		return serve.Refuse(http.StatusGone, "request_id", "the server has no result of request %.200q; send the request again", o.ID)
	}
	patience := time.NewTimer(t.config.Patience)
	defer patience.Stop()
	select {
	case <-fut.done:
	case <-patience.C:
		serve.WriteJSON(w, http.StatusRequestTimeout, map[string]any{"type": "try_again", "request_id": o.ID, "queue_state": "active"})
		return nil
	case <-t.ending:
		return serve.Refuse(http.StatusServiceUnavailable, "", "the server is stopping")
	case <-r.Context().Done():
		return r.Context().Err()
	}
	if fut.err != nil {
		serve.WriteJSON(w, http.StatusOK, failure(fut.err))
		return nil
	}
	if data := fut.outcome.Proto(); data != nil && strings.Contains(r.Header.Get("Accept"), tinker.Protobuf) {
		w.Header().Set("Content-Type", tinker.Protobuf)
		_, err := w.Write(data)
		return err
	}
	serve.WriteJSON(w, http.StatusOK, fut.outcome)
	return nil
}
