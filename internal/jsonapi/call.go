// Package jsonapi sends requests to servers with OpenAI's API.
package jsonapi

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
)

// Transient is an error that a retry or another server may avoid.
type Transient struct{ error }

// Unwrap returns the error itself.
func (t Transient) Unwrap() error { return t.error }

// Temporary marks an error as Transient.
func Temporary(err error) error { return Transient{err} }

// Status is an HTTP error response.
type Status struct {
	Code   int
	Text   string // the message of an OpenAI error, or the body itself
	Header http.Header
}

func (s *Status) Error() string { return fmt.Sprintf("status %d: %.300s", s.Code, s.Text) }

// Call sends a request with body as JSON, unless that is nil, and the key as a bearer token, unless that is "". It decodes a
// response of at most most bytes into into, unless that is nil. A response without success is a Status. Temporary errors are
// Transient; if ctx ends first, the error is that of ctx.
func Call(ctx context.Context, client *http.Client, method, address, key string, body, into any, most int64) error {
	var data []byte
	if body != nil {
		var err error
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, address, bytes.NewReader(data))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set("Authorization", "Bearer "+key)
	}
	answered, _, err := Send(client, r, most)
	if err != nil || into == nil {
		return err
	}
	return Decode(answered, into)
}

// Decode decodes the JSON of a response. An error is Transient, because the response may be truncated.
func Decode(data []byte, into any) error {
	if err := json.Unmarshal(data, into); err != nil {
		return Transient{fmt.Errorf("decoding the response: %w", err)}
	}
	return nil
}

// IsAddress reports whether text is the address of a server: http or https, without user and query.
func IsAddress(text string) bool {
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") && u.User == nil && u.RawQuery == ""
}

// Send sends a request as Call does and returns the response with its header.
func Send(client *http.Client, r *http.Request, most int64) (data []byte, header http.Header, err error) {
	answer, err := client.Do(r)
	if err == nil {
		defer answer.Body.Close()
		data, err = io.ReadAll(io.LimitReader(answer.Body, most+1))
	}
	switch {
	case err != nil && r.Context().Err() != nil:
		return nil, nil, r.Context().Err()
	case err != nil:
		return nil, nil, Transient{err}
	case int64(len(data)) > most:
		return nil, nil, fmt.Errorf("response is longer than %d bytes", most)
	case answer.StatusCode/100 != 2:
		err := &Status{answer.StatusCode, reason(data), answer.Header}
		if answer.StatusCode >= 500 || answer.StatusCode == http.StatusTooManyRequests || answer.StatusCode == http.StatusRequestTimeout {
			return nil, nil, Transient{err}
		}
		return nil, nil, err
	}
	return data, answer.Header, nil
}

// reason returns the message of an OpenAI error, or the text itself.
func reason(data []byte) string {
	var body struct {
		Error   struct{ Message string }
		Message string
	}
	if json.Unmarshal(data, &body) == nil {
		if text := cmp.Or(body.Error.Message, body.Message); text != "" {
			return text
		}
	}
	return strings.TrimSpace(string(data))
}
