package within_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rltrain/rltrain/internal/expect"
	"github.com/rltrain/rltrain/internal/within"
)

func TestDo(t *testing.T) {
	stop := errors.New("stop")
	for _, test := range []struct {
		name string
		do   func(ctx context.Context) (int, error)
		want string
	}{
		{"answers", func(context.Context) (int, error) { return 7, nil }, ""},
		{"fails", func(context.Context) (int, error) { return 0, stop }, "stop"},
		{"panics", func(context.Context) (int, error) { panic(3) }, "panic: 3"},
		{"heeds its context", func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, ctx.Err() }, "timeout after 1m0s"},
		{"heeds nothing", func(context.Context) (int, error) { time.Sleep(time.Hour); return 7, nil }, "timeout after 1m0s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			defer time.Sleep(2 * time.Hour) // of the bubble: abandoned calls end before it
			value, err := within.Do(t.Context(), time.Minute, test.do)
			expect.True(t, (test.want != "" || value == 7 && err == nil) && (test.want == "" || value == 0 && err != nil && err.Error() == test.want), "%s: %d, %v", test.name, value, err)
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := within.Do(ctx, 0, func(ctx context.Context) (int, error) { <-ctx.Done(); return 1, nil })
	expect.True(t, err == nil || errors.Is(err, context.Canceled), "error %v", err)
}
