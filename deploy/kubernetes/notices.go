// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"
)

// claimNotice is something that happened to one share's lease.
type claimNotice struct{ share, reason, message string }

// claimNotifier tells it where the claim's user looks: as an Event, and as a condition of the device in the claim's status.
type claimNotifier struct {
	kube   kubernetes.Interface
	driver string
	node   string
}

const notifyTimeout = 10 * time.Second

// notify never fails: what cannot be told stands in the log.
func (n *claimNotifier) notify(ctx context.Context, uid types.UID, name types.NamespacedName, notice claimNotice) {
	ctx, cancel := context.WithTimeout(ctx, notifyTimeout)
	defer cancel()
	logger := klog.FromContext(ctx)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		claim, err := n.kube.ResourceV1().ResourceClaims(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if claim.UID != uid || claim.Status.Allocation == nil || !n.setCondition(claim, notice) {
			return nil
		}
		_, err = n.kube.ResourceV1().ResourceClaims(name.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		logger.Error(err, "The claim's status does not say what happened", "claim", name, "reason", notice.reason)
	}
	now := metav1.Now()
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "terrace-", Namespace: name.Namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaim", Namespace: name.Namespace, Name: name.Name, UID: uid,
		},
		Reason: notice.reason, Message: notice.message, Type: corev1.EventTypeWarning,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: n.driver, Host: n.node},
	}
	if _, err := n.kube.CoreV1().Events(name.Namespace).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		logger.Error(err, "No event says what happened", "claim", name, "reason", notice.reason)
	}
}

// setCondition returns false where no share of the claim is meant, or it is said already.
func (n *claimNotifier) setCondition(claim *resourceapi.ResourceClaim, notice claimNotice) bool {
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != n.driver || shareHash(&result) != notice.share {
			continue
		}
		condition := metav1.Condition{
			Type: "Ready", Status: metav1.ConditionFalse, Reason: notice.reason, LastTransitionTime: metav1.Now(),
			Message: fmt.Sprintf("%s; its memory is no longer the pod's", notice.message),
		}
		device := n.deviceOf(claim, &result)
		for _, said := range device.Conditions {
			if said.Type == condition.Type && said.Status == condition.Status && said.Reason == condition.Reason {
				return false
			}
		}
		device.Conditions = []metav1.Condition{condition}
		return true
	}
	return false
}

// deviceOf is the result's entry in the claim's status, which is made where there is none.
func (n *claimNotifier) deviceOf(claim *resourceapi.ResourceClaim, result *resourceapi.DeviceRequestAllocationResult) *resourceapi.AllocatedDeviceStatus {
	share := (*string)(result.ShareID)
	for at := range claim.Status.Devices {
		one := &claim.Status.Devices[at]
		same := (one.ShareID == nil) == (share == nil) && (share == nil || *one.ShareID == *share)
		if one.Driver == n.driver && one.Pool == result.Pool && one.Device == result.Device && same {
			return one
		}
	}
	claim.Status.Devices = append(claim.Status.Devices,
		resourceapi.AllocatedDeviceStatus{Driver: n.driver, Pool: result.Pool, Device: result.Device, ShareID: share})
	return &claim.Status.Devices[len(claim.Status.Devices)-1]
}
