"""Every address, one name through all layers."""

from django.urls import URLPattern

urlpatterns: list[URLPattern] = []
