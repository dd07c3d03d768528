// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

// watcher follows the manager: it publishes pools when they change, reports health, renews leases with a TTL, and says what
// happened to a claim's lease. One goroutine.
type watcher struct {
	driver    *driver
	publish   func(context.Context, resourceslice.DriverResources) error
	interval  time.Duration // between two looks at the events
	everyTime time.Duration // at least so often at all of it
	away      time.Duration // after so long without an answer, nobody is scheduled to the pools
	reconcile *reconciler

	since     uint64
	run       string
	lookedAt  time.Time
	heardAt   time.Time
	seen      *snapshot
	stale     bool           // what was seen is of an earlier run of the manager
	pending   []terraceEvent // not told yet
	isAway    bool
	complaint string // the last one, which is not repeated
	published resourceslice.DriverResources
	leases    map[uint64]terraceLease // of this node, also such as have ended since the last look but one
}

func (w *watcher) loop(ctx context.Context) {
	w.heardAt = time.Now()
	for {
		w.complain(ctx, w.turn(ctx))
		select {
		case <-ctx.Done():
			return
		case <-time.After(w.interval):
		}
	}
}

// complain says once what is wrong, and once that it is not any more.
func (w *watcher) complain(ctx context.Context, err error) {
	said := ""
	if err != nil && ctx.Err() == nil {
		said = err.Error()
	}
	if said != "" && said != w.complaint {
		klog.FromContext(ctx).Error(err, "Cannot follow the manager; trying again")
	} else if said == "" && w.complaint != "" {
		klog.FromContext(ctx).Info("The manager is followed again")
	}
	w.complaint = said
}

func (w *watcher) turn(ctx context.Context) error {
	err := w.news(ctx)
	if err == nil && (len(w.pending) > 0 || w.stale || w.seen == nil || time.Since(w.lookedAt) > w.everyTime) {
		err = w.look(ctx)
	}
	if err != nil {
		if w.seen != nil && errors.Is(err, errAway) && time.Since(w.heardAt) > w.away {
			w.isAway = true
			w.tell(ctx)
		}
		return err
	}
	w.heardAt, w.isAway = time.Now(), false
	for _, event := range w.pending {
		w.notice(ctx, event)
	}
	w.pending = nil
	w.tell(ctx)
	w.renew(ctx)
	w.reconcile.run(ctx, w.seen)
	return nil
}

// news reads what has happened since the last turn.
func (w *watcher) news(ctx context.Context) error {
	for {
		page, err := w.driver.terrace.events(ctx, w.since, w.run)
		if err != nil {
			return err
		}
		if w.run != "" { // what was before this driver's start is no news
			w.pending = append(w.pending, page.Events...)
			w.stale = w.stale || page.Run != w.run
		}
		w.since, w.run = page.Next, page.Run
		if !page.More {
			return nil
		}
	}
}

func (w *watcher) look(ctx context.Context) error {
	seen, err := w.driver.terrace.look(ctx, "")
	if err != nil {
		return err
	}
	before := map[uint64]terraceLease{}
	if w.seen != nil {
		for _, lease := range w.seen.Leases {
			before[lease.ID] = lease
		}
	}
	w.leases = before
	for _, lease := range seen.Leases {
		w.leases[lease.ID] = lease
	}
	w.seen, w.stale, w.lookedAt = seen, false, time.Now()
	return nil
}

// tell publishes what was seen, where it differs from what is published, and the health.
func (w *watcher) tell(ctx context.Context) {
	d := w.driver
	described, names := d.resources(w.seen, w.isAway)
	d.pools.set(names)
	d.state.set(d.node, w.seen, w.isAway)
	if reflect.DeepEqual(described, w.published) {
		return
	}
	if err := w.publish(ctx, described); err != nil {
		d.fatal(fmt.Errorf("publish pools: %w", err))
		return
	}
	w.published = described
	klog.FromContext(ctx).V(2).Info("Published", "pools", len(described.Pools), "away", w.isAway)
}

// Events that end a pod's memory, or may.
var leaseNotices = map[string]string{
	"lease_revoked": "LeaseRevoked", "lease_expired": "LeaseExpired", "lease_fence_failed": "FenceFailed", "lease_quarantined": "Quarantined",
}

func (w *watcher) notice(ctx context.Context, event terraceEvent) {
	reason, known := leaseNotices[event.Kind]
	if !known || event.Lease == nil {
		return
	}
	lease, ours := w.leases[*event.Lease]
	if !ours {
		return
	}
	parts, _ := parseLabel(lease.Label)
	if parts.owner != w.driver.owner {
		return
	}
	namespace, name, _ := strings.Cut(parts.claim, ".")
	text := fmt.Sprintf("claim %s/%s: %s", namespace, name, event.Message)
	klog.FromContext(ctx).Info("Lease of a claim", "event", event.Kind, "lease", lease.ID, "label", lease.Label, "message", event.Message)
	w.driver.state.note(lease.Pool, text)
	w.driver.notify(ctx, types.UID(parts.uid), types.NamespacedName{Namespace: namespace, Name: name},
		claimNotice{share: parts.share, reason: reason, message: event.Message})
}

// renew puts off the end of leases with a TTL, from a third of it on, for as long as their claims are prepared here.
func (w *watcher) renew(ctx context.Context) {
	since := uint64(time.Since(w.lookedAt))
	for at := range w.seen.Leases {
		lease := &w.seen.Leases[at]
		parts, _ := parseLabel(lease.Label)
		if parts.owner != w.driver.owner || lease.TTLNs == 0 || lease.Phase != "active" || lease.ExpiresInNs == nil ||
			*lease.ExpiresInNs > lease.TTLNs/3*2+since {
			continue
		}
		if err := w.driver.terrace.renew(ctx, lease.ID, lease.TTLNs); err != nil {
			klog.FromContext(ctx).Error(err, "Lease not renewed", "lease", lease.ID, "label", lease.Label)
			continue
		}
		*lease.ExpiresInNs = lease.TTLNs + since
	}
}
